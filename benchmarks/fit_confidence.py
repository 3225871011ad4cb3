"""Fits the temperature of confidences to drills of tuning seeds and writes it to ``detectors/rca/confidence.yaml``.

    python benchmarks/fit_confidence.py --seeds 1 2 3 --write

Every incident with a suspected cause counts. ``RIDGE`` pulls the logarithm of the temperature towards that of the file:
detectors were developed on the tuning seeds, which therefore score too well.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scipy.optimize import minimize_scalar

from detectors.rca import confidence
from detectors.rca.confidence import Scale
from outrider import log
from outrider.vocabulary.reliability import calibration_error, curve
from service.drills import scenario_choice
from service.drills.runner import run_all
from simulator.scenarios import TUNING_SEEDS
from simulator.scoring.calibration import RankedAnswer, answers_of
from simulator.scoring.score import GRACE

RIDGE = 0.2
LEAST_UNKNOWN = 0.001  # confidences have three digits
FILE = Path(__file__).resolve().parent.parent / "detectors" / "rca" / confidence.FILE


def rescaled(answer: RankedAnswer, old: Scale, new: Scale) -> list[float]:
    """Returns the confidences of the same scores on another scale, best first."""
    unknown = max(LEAST_UNKNOWN, 1.0 - sum(answer.confidences))
    scores = [
        old.unknown_score + old.temperature * math.log(max(share, LEAST_UNKNOWN) / unknown)
        for share in answer.confidences
    ]
    return new.shares([new.weight(score) for score in scores])


def loss(answers: Sequence[RankedAnswer], old: Scale, new: Scale) -> float:
    """Returns the mean negative log confidence in the true cause, or in "none of these" if it is not a candidate."""
    total = 0.0
    for answer in answers:
        shares = rescaled(answer, old, new)
        confidence = 1.0 - sum(shares) if answer.right is None else shares[answer.right]
        total -= math.log(max(confidence, 1e-9))
    return total / len(answers)


def fit(answers: Sequence[RankedAnswer], old: Scale) -> Scale:
    """Returns the scale whose temperature fits the answers best. Raises ValueError if there are none."""
    if not answers:
        raise ValueError("no drill has a suspected cause: nothing to fit")

    def cost(logarithm: float) -> float:
        new = Scale(math.exp(logarithm), old.unknown_score)
        return loss(answers, old, new) + RIDGE * (logarithm - math.log(old.temperature)) ** 2

    result = minimize_scalar(cost, bounds=(math.log(0.02), math.log(1.0)), method="bounded")
    return Scale(round(math.exp(float(result.x)), 3), old.unknown_score)


def error(answers: Sequence[RankedAnswer], old: Scale, new: Scale) -> float:
    """Returns the expected calibration error of the answers on a scale."""
    first = [min(1.0, rescaled(answer, old, new)[0]) for answer in answers]
    return calibration_error(curve(first, [answer.first_right for answer in answers])) or 0.0


def text(scale: Scale, seeds: Sequence[int], answers: Sequence[RankedAnswer], before: float, after: float) -> str:
    """Returns the text of the file."""
    right = sum(answer.first_right for answer in answers)
    errors = f"error_before: {before:.3f}, error_after: {after:.3f}"
    return f"""\
# Maps scores to confidences. Written by benchmarks/fit_confidence.py from drills with tuning seeds.
temperature: {scale.temperature:g}  # divides scores; smaller means more confident
unknown_score: {scale.unknown_score:g}  # score of an unlisted cause
fitted: {{seeds: {list(seeds)}, answers: {len(answers)}, right: {right}, {errors}}}
"""


def main() -> int:
    """Runs the drills, fits and prints; with ``--write`` saves the result."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], choices=TUNING_SEEDS)
    options.add_argument("--only", nargs="*", help="scenario ids (default: all)")
    options.add_argument("--write", action="store_true")
    arguments = options.parse_args()
    log.configure(level="critical")
    answers: list[RankedAnswer] = []
    for seed in arguments.seeds:
        seen = run_all(scenario_choice.select(arguments.only), seed, lambda *_: None)
        answers += answers_of([one.run for one in seen], GRACE)
    old = confidence.packaged()
    new = fit(answers, old)
    frozen = text(new, arguments.seeds, answers, error(answers, old, old), error(answers, old, new))
    sys.stdout.write(frozen)
    if arguments.write:
        FILE.write_text(frozen, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
