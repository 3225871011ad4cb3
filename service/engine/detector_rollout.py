"""Rollout of detectors: learning, then shadow, then alerting.

Rules and comparisons with peers need no past and alert from the first cycle. A statistical detector has no
verdict before it has an expectation; then it is tried until it has learnt two days of its class of entities,
for a time of day is known after having been seen twice; and it alerts no further while it would do so far
beyond its budget. The reason tells one that knows the time of day from one that has seen two weeks, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from detectors.base.protocols import LearningDetector
from detectors.statistics.weekly_profile import MATURE
from outrider.model import (
    AlarmRate,
    DetectorStanding,
    DetectorState,
    Finding,
    NoVerdict,
    NoVerdictReason,
    ShadowFinding,
    Stage,
    StageReason,
)
from outrider.ports import Detector

TRIAL = timedelta(days=2)
FAR_OVER, BACK_WITHIN = 4.0, 2.0  # of the budget: out of alerting, and back into it
PRIOR_ENTITY_DAYS = 10.0  # at the budget, so that one bad hour of a young detector is no verdict on it
_SHOWN = 20  # findings in the shadow that are kept, of one detector


@dataclass(frozen=True, slots=True)
class DetectorRun:
    """One run of a detector: its verdicts, the number of its entities and its new state."""

    detector: Detector
    state: DetectorState
    entities: int
    verdicts: Sequence[Finding | NoVerdict]

    @property
    def findings(self) -> list[Finding]:
        """The findings among the verdicts."""
        return [one for one in self.verdicts if isinstance(one, Finding)]


class DetectorRollout:
    """The standing of every detector, carried from cycle to cycle."""

    def __init__(self, trial: timedelta = TRIAL) -> None:
        """``trial`` is how much past a statistical detector learns before it may alert."""
        self._trial = trial
        self._standings: dict[str, DetectorStanding] = {}

    def copy(self) -> DetectorRollout:
        """Returns a copy that can be changed without effect on this one."""
        other = DetectorRollout(self._trial)
        other.restore(self._standings.values())
        return other

    def restore(self, standings: Iterable[DetectorStanding]) -> None:
        """Restores the standings from before a restart."""
        self._standings = {one.detector: one for one in standings}

    @property
    def standings(self) -> Mapping[str, DetectorStanding]:
        """Standings by detector name."""
        return self._standings

    def judge(self, run: DetectorRun, now: datetime) -> DetectorStanding:
        """Returns the standing of a detector after a cycle."""
        before = self._standings.get(run.detector.name)
        past = run.detector if isinstance(run.detector, LearningDetector) else None
        learnt = past.learnt(run.state) if past else None
        rate = past.alarm_rate(run.state) if past else None
        stage, reason = self._stage(run, before, learnt, rate, weekly=past is not None and past.weekly)
        same = before is not None and (before.stage, before.reason) == (stage, reason)
        silent, everyone = _silences(run.verdicts)
        found = run.findings
        standing = DetectorStanding(
            detector=run.detector.name,
            kind=run.detector.kind,
            stage=stage,
            reason=reason,
            since=before.since if same and before else now,
            entities=run.entities,
            findings=len(found),
            silent=silent,
            everyone_silent=everyone,
            learnt_seconds=learnt.total_seconds() if learnt is not None else None,
            needed_seconds=self._trial.total_seconds() if past else None,
            rate=rate,
            shadowed=_shadowed(found) if stage is Stage.SHADOW else (),
        )
        self._standings[standing.detector] = standing
        return standing

    def _stage(
        self,
        run: DetectorRun,
        before: DetectorStanding | None,
        learnt: timedelta | None,
        rate: AlarmRate | None,
        *,
        weekly: bool,
    ) -> tuple[Stage, StageReason]:
        if learnt is None or rate is None:
            return Stage.ALERTING, StageReason.NEEDS_NO_PAST
        if _warming_up(run):
            return Stage.LEARNING, StageReason.TOO_LITTLE_PAST
        if learnt <= timedelta(0):
            return Stage.LEARNING, StageReason.NOTHING_SEEN
        if learnt < self._trial:
            return Stage.SHADOW, StageReason.ON_TRIAL
        was_over = before is not None and before.reason is StageReason.OVER_BUDGET
        if _likely_rate(rate) > rate.budget * (BACK_WITHIN if was_over else FAR_OVER):
            return Stage.SHADOW, StageReason.OVER_BUDGET
        only_day = weekly and learnt < MATURE
        return Stage.ALERTING, StageReason.LEARNT_DAY if only_day else StageReason.LEARNT


def alertable_verdicts(
    standing: DetectorStanding, verdicts: Sequence[Finding | NoVerdict]
) -> Sequence[Finding | NoVerdict]:
    """Returns the verdicts that may raise alerts: none in the shadow. Existing alerts are kept meanwhile."""
    if standing.stage is not Stage.SHADOW:
        return verdicts
    kept = [one for one in verdicts if isinstance(one, NoVerdict)]
    return (*kept, NoVerdict(standing.detector, None, NoVerdictReason.WARMING_UP))


def as_stored(standing: DetectorStanding) -> DetectorStanding:
    """Returns the standing with a limited number of the newest shadow findings."""
    newest = sorted(standing.shadowed, key=lambda one: one.since, reverse=True)[:_SHOWN]
    return replace(standing, shadowed=tuple(newest))


def _warming_up(run: DetectorRun) -> bool:
    """True if no entity has a verdict, and the history of some is too short."""
    silent = [one for one in run.verdicts if isinstance(one, NoVerdict)]
    everyone = {one.reason for one in silent if one.entity is None}
    if everyone:
        return NoVerdictReason.WARMING_UP in everyone
    nobody = run.entities > 0 and len({one.entity for one in silent}) >= run.entities
    return nobody and any(one.reason is NoVerdictReason.WARMING_UP for one in silent)


def _likely_rate(rate: AlarmRate) -> float:
    days = rate.entity_days
    counted = (rate.realised or 0.0) * days
    return (counted + rate.budget * PRIOR_ENTITY_DAYS) / (days + PRIOR_ENTITY_DAYS)


def _silences(
    verdicts: Iterable[Finding | NoVerdict],
) -> tuple[dict[NoVerdictReason, int], NoVerdictReason | None]:
    silent = [one for one in verdicts if isinstance(one, NoVerdict)]
    everyone = next((one.reason for one in silent if one.entity is None), None)
    return dict(Counter(one.reason for one in silent if one.entity is not None)), everyone


def _shadowed(findings: Iterable[Finding]) -> tuple[ShadowFinding, ...]:
    return tuple(ShadowFinding(one.entity, one.signals, one.window.start) for one in findings)
