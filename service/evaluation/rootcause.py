"""Back-test of root cause over a call graph: scores the rank of the true cause of each labeled incident."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detectors.rca import call_graph
from detectors.rca.call_excess import Calls, Symptom
from detectors.rca.call_graph import CallGraph
from outrider.errors import UsageError
from outrider.model import NoVerdict
from service.evaluation import petshop
from service.evaluation.petshop import Folder, Issue

NAMED = 3  # services kept of each answer


@dataclass(frozen=True, slots=True)
class RankingInput:
    """Input of a ranker for one incident; services are numbers. ``before`` may have no steps."""

    issue: Issue
    graph: CallGraph
    normal: Calls
    before: Calls
    incident: Calls
    target: int


@dataclass(frozen=True, slots=True)
class Answer:
    """(service number, confidence) best first, or the reason for none."""

    suspects: tuple[tuple[int, float], ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RankedIncident:
    """One incident and the rank of its cause: 1 is first, None is not named. ``named`` are the first three."""

    part: str
    name: str
    symptom: Symptom
    cause: str
    place: int | None
    confidence: float
    named: tuple[str, ...]
    reason: str = ""

    @property
    def kind(self) -> str:
        """Symptom and cause; incidents of one kind differ in strength and time."""
        return f"{self.symptom} of {self.cause}"


@dataclass(frozen=True, slots=True)
class RootCauseBacktest:
    """Results of all incidents. ``seconds`` is the time to read and rank them, None without a timer."""

    cases: tuple[RankedIncident, ...]
    seconds: float | None

    def top(self, places: int, cases: Sequence[RankedIncident] | None = None) -> float:
        """Returns the share of incidents whose cause is among the first ``places``."""
        chosen = self.cases if cases is None else cases
        return sum(case.place is not None and case.place <= places for case in chosen) / len(chosen)

    def as_dict(self) -> dict[str, Any]:
        """The keys of ``outrider rootcause backtest -o json``."""
        per_case = None if self.seconds is None else self.seconds / len(self.cases)
        return {
            **self._shares(self.cases),
            "seconds_per_case": per_case,
            "by_part": {name: self._shares(cases) for name, cases in self.parts().items()},
            "by_kind": [
                {"symptom": cases[0].symptom.value, "cause": cases[0].cause, **self._shares(cases)}
                for cases in self.kinds().values()
            ],
            "not_first": [
                {
                    "part": case.part,
                    "name": case.name,
                    "cause": case.cause,
                    "place": case.place,
                    "named": list(case.named),
                    "reason": case.reason or None,
                }
                for case in self.cases
                if case.place != 1
            ],
        }

    def _shares(self, cases: Sequence[RankedIncident]) -> dict[str, Any]:
        return {"cases": len(cases), "top1": self.top(1, cases), "top3": self.top(3, cases)}

    def parts(self) -> dict[str, tuple[RankedIncident, ...]]:
        """Incidents by part: train, test."""
        return self._grouped(lambda case: case.part)

    def kinds(self) -> dict[str, tuple[RankedIncident, ...]]:
        """Incidents by kind: symptom and cause."""
        return self._grouped(lambda case: case.kind)

    def _grouped(self, name_of: Callable[[RankedIncident], str]) -> dict[str, tuple[RankedIncident, ...]]:
        groups: dict[str, list[RankedIncident]] = {}
        for case in self.cases:
            groups.setdefault(name_of(case), []).append(case)
        return {name: tuple(cases) for name, cases in groups.items()}


def by_calls(case: RankingInput) -> Answer:
    """Ranks with the platform's own ranker."""
    ranking = call_graph.rank(case.graph, case.normal, case.incident, case.target, case.issue.symptom, case.before)
    if isinstance(ranking, NoVerdict):
        return Answer((), ranking.reason)
    suspects = tuple((suspect.entity, suspect.confidence) for suspect in ranking.suspects)
    return Answer(suspects, "" if suspects else "no_fault")


def backtest(
    path: Path,
    *,
    ranker: Callable[[RankingInput], Answer] = by_calls,
    timer: Callable[[], float] | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> RootCauseBacktest:
    """Ranks every incident of one traffic folder in the PetShop format. Labels are used for scoring only.

    ``timer`` is a monotonic clock in seconds. Raises UsageError with the file.
    """
    folder = petshop.open_folder(path)
    normal = folder.normal.calls(folder.services)
    started, ranked = (timer() if timer else 0.0), list[RankedIncident]()
    for number, issue_path in enumerate(folder.issues):
        case = _case(folder, normal, issue_path)
        ranked.append(_scored(case, ranker(case), folder.services))
        if progress is not None:
            progress("backtest", (number + 1) / len(folder.issues))
    return RootCauseBacktest(tuple(ranked), timer() - started if timer else None)


def _case(folder: Folder, normal: Calls, path: Path) -> RankingInput:
    """Reads one incident. A step belongs to it if it ends after the symptom began."""
    issue = petshop.read_issue(path)
    if issue.target not in folder.services:
        raise UsageError(f"{path / 'target.json'}: target.node {issue.target!r} is not in graph.csv")
    since = issue.measured.begins + folder.step_seconds > issue.since
    if not since.any():
        raise UsageError(f"{path / 'metrics.csv'}: no step lies after target.timestamp, {issue.since:.0f}")
    before, incident = (issue.measured.calls(folder.services, steps) for steps in (~since, since))
    return RankingInput(issue, folder.graph, normal, before, incident, folder.services.index(issue.target))


def _scored(case: RankingInput, answer: Answer, services: Sequence[str]) -> RankedIncident:
    issue, named = case.issue, [services[number] for number, _ in answer.suspects]
    return RankedIncident(
        part=issue.part,
        name=issue.name,
        symptom=issue.symptom,
        cause=issue.cause,
        place=named.index(issue.cause) + 1 if issue.cause in named else None,
        confidence=answer.suspects[0][1] if answer.suspects else 0.0,
        named=tuple(named[:NAMED]),
        reason=answer.reason,
    )
