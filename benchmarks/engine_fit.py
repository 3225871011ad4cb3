"""Accuracy of the engine model against a real vLLM: four recorded loads, replayed with fitted step times.

Step times are fitted to every other minute of the four loads together; ``unseen`` is the error over the other minutes.
A line is the absolute relative error of one quantity of one load. ``holds`` is empty if the recorded level is too low
to score. Needs the recordings (``--data``).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, data_folder, main, result
from benchmarks.fleet.recorded.errors import Error, errors
from benchmarks.fleet.recorded.fitting import FITTED, fit
from benchmarks.fleet.recorded.loads import GUESS, read_all
from benchmarks.fleet.recorded.reading import Recording
from benchmarks.fleet.recorded.replaying import pace, replay
from simulator.spec.parts import EngineModel

TARGET = 0.15
RECORDINGS = "recordings/vllm-0.32.0"
# The server lost a share of a core during this recording; its documentation has the time.
DISTURBED = "b_steady"


def run() -> list[Result]:
    """Returns the errors of running, waiting, KV-cache utilization and TTFT of each load, and the fit time."""
    folder = data_folder() or Path("../shared")
    if not (folder / RECORDINGS).is_dir():
        print(f"engine_fit needs {RECORDINGS}: set its folder with --data DIR", file=sys.stderr)
        return []
    recordings = read_all(folder / RECORDINGS)
    begun = time.perf_counter()
    model = fit(recordings, GUESS)
    seconds = time.perf_counter() - begun
    lines = [line for recording in recordings for line in _lines(recording, model)]
    steps = {name: getattr(model, name) for name in FITTED}
    return [*lines, result("engine_fit.seconds", seconds, "s", None, None, **steps)]


def _lines(recording: Recording, model: EngineModel) -> list[Result]:
    results = replay(recording, [model])
    pairs = zip(errors(recording, results), errors(recording, results, unseen=True), strict=True)
    lines = [_line(error, unseen) for error, unseen in pairs]
    if recording.name == DISTURBED:
        at_pace = replay(recording, [model], pace(recording, model))
        lines += [_line(error, None, "at_its_pace.") for error in errors(recording, at_pace) if error.judged]
    return lines


def _line(error: Error, unseen: Error | None, note: str = "") -> Result:
    ratio = abs(error.ratio) if error.ratio is not None else 0.0
    return result(
        f"engine_fit.{error.recording}.{note}{error.quantity}",
        ratio,
        "ratio",
        TARGET if error.judged else None,
        ratio <= TARGET if error.judged else None,
        recorded=error.recorded,
        replayed=error.replayed,
        unseen=None if unseen is None else unseen.ratio,
        shape=error.shape,
        noise=error.noise,
    )


if __name__ == "__main__":
    main(run)
