"""Calibration of the confidences of drills: each named cause with its confidence, and whether it was right.

Pure. Every incident with a named cause counts, including one that matches no fault: its cause was wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outrider.vocabulary.reliability import calibration_error, curve

if TYPE_CHECKING:
    from simulator.scoring.score import Run, ScoredIncident


@dataclass(frozen=True, slots=True)
class RankedAnswer:
    """The answers of one incident, best first. ``right`` is the place (from 0) of the one that was true, None: none."""

    confidences: tuple[float, ...]
    right: int | None

    @property
    def first_right(self) -> bool:
        """True when the first answer was."""
        return self.right == 0


def answers_of(runs: Iterable[Run], grace: timedelta) -> list[RankedAnswer]:
    """Confidences of each incident, and the cause that was really injected then, until ``grace`` after its end."""
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
    """``calibration_error`` (0-1, None for no answers) and ``reliability``: a row for each range of confidence."""
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
