"""Calibration of drill confidences: each suspected cause with its confidence and correctness.

Pure. Every incident with a suspected cause counts; if it matches no fault, its cause is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outrider.vocabulary.reliability import calibration_error, curve
from simulator.scoring.run import Run, ScoredIncident


@dataclass(frozen=True, slots=True)
class RankedAnswer:
    """Hypotheses of one incident, best first. ``right`` is the index of the true one, None if it is missing."""

    confidences: tuple[float, ...]
    right: int | None

    @property
    def first_right(self) -> bool:
        """True if the first hypothesis is right."""
        return self.right == 0


def answers_of(runs: Iterable[Run], grace: timedelta) -> list[RankedAnswer]:
    """Returns confidences of each incident, with the index of its injected cause (until ``grace`` after its end)."""
    return [
        RankedAnswer(incident.confidences, _right(run, incident, grace))
        for run in runs
        for incident in run.incidents
        if incident.confidences
    ]


def _right(run: Run, incident: ScoredIncident, grace: timedelta) -> int | None:
    true = {
        (fault.entity, fault.fault) for fault in run.injected if fault.start <= incident.opened_at <= fault.end + grace
    }
    return next((place for place, one in enumerate(incident.hypotheses) if one in true), None)


def reliability(answers: Iterable[RankedAnswer]) -> dict[str, Any]:
    """Returns ``calibration_error`` (0-1, None without answers) and ``reliability``, a row per confidence range."""
    known = list(answers)
    bins = curve([min(1.0, one.confidences[0]) for one in known], [one.first_right for one in known])
    rows = [
        {
            "from": one.low,
            "to": one.high,
            "answers": one.count,
            "confidence": round(one.confidence, 3),
            "right": round(one.accuracy, 3),
        }
        for one in bins
    ]
    return {"calibration_error": calibration_error(bins), "reliability": rows}
