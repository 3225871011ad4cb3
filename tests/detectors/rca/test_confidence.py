from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks import fit_confidence
from detectors.rca import confidence
from detectors.rca.confidence import Scale
from outrider.errors import ConfigError
from simulator.scenarios import SCORING_SEEDS
from simulator.scoring.calibration import RankedAnswer

GOOD = "temperature: 0.2\nunknown_score: 0.5\n"


def test_the_stored_calibration_uses_tuning_seeds_only():
    stored = yaml.safe_load(fit_confidence.FILE.read_text())
    assert stored["fitted"]["answers"] >= 50
    assert not set(stored["fitted"]["seeds"]) & set(SCORING_SEEDS)
    assert confidence.packaged() == Scale(stored["temperature"], stored["unknown_score"])


def test_confidences_keep_the_order_of_scores_and_sum_below_one():
    scale = Scale(0.2, 0.5)
    shares = scale.shares([scale.weight(score) for score in (0.9, 0.7, 0.3)])
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) < 1
    (even,) = scale.shares([scale.weight(0.5)])
    assert even == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 0, ""),
        ("[1]", 1, "a mapping of keys, not a list"),
        (GOOD.replace("0.2", "warm"), 1, "a number, not 'warm'"),
        (GOOD.replace("0.2", "0"), 1, "expected 0.01 to 2, not 0"),
        (GOOD.replace("0.5", "7"), 2, "expected 0 to 1, not 7"),
        (GOOD.replace("unknown_score", "unknown_scare"), 2, 'did you mean "unknown_score"'),
        ("temperature: 0.2\n", 1, "is missing"),
    ],
)
def test_a_damaged_file_is_reported_with_line_and_key(text, line, message):
    with pytest.raises(ConfigError) as caught:
        confidence.read(text, "confidence.yaml")
    assert {problem.file for problem in caught.value.problems} == {"confidence.yaml"}
    assert line in {problem.line for problem in caught.value.problems}
    assert message in " ".join(one.message for one in caught.value.problems)


def test_mostly_correct_rankings_lower_the_temperature_and_wrong_ones_raise_it():
    old = Scale(0.2, 0.5)
    right = [RankedAnswer((0.85,), 0)] * 40
    assert fit_confidence.fit([*right, RankedAnswer((0.85,), None)], old).temperature < old.temperature
    wrong = [RankedAnswer((0.85,), None)] * 20
    assert fit_confidence.fit([*right[:20], *wrong], old).temperature > old.temperature
    with pytest.raises(ValueError, match="nothing to fit"):
        fit_confidence.fit([], old)


def test_the_same_scale_gives_the_same_confidences():
    scale = Scale(0.2, 0.5)
    assert fit_confidence.rescaled(RankedAnswer((0.6, 0.2), 0), scale, scale) == pytest.approx([0.6, 0.2], abs=0.002)


def test_a_stored_calibration_can_be_read_back():
    answers = [RankedAnswer((0.85,), 0), RankedAnswer((0.6,), None)]
    text = fit_confidence.text(Scale(0.15, 0.5), (1, 2), answers, 0.1, 0.05)
    assert confidence.read(text, "x") == Scale(0.15, 0.5)
    assert yaml.safe_load(text)["fitted"]["right"] == 1
