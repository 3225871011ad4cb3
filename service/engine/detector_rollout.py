"""Rollout of detectors: learning, then shadow, then alerting.

Rules and comparisons with peers need no history and alert from the first cycle. A statistical detector has no verdict
before it has a baseline. It then runs in shadow mode until it has learned two days of its entity kind, so that it has
seen each time of day twice. It returns to shadow mode if its alarm rate is far above its budget. The reason
distinguishes a detector that knows the time of day from one that has seen two weeks.
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
    DetectorState,
    DetectorStatus,
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
PRIOR_ENTITY_DAYS = 10.0  # assumed at the budget, so that one bad hour does not judge a new detector
_SHOWN = 20  # stored shadow findings per detector


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
        return [verdict for verdict in self.verdicts if isinstance(verdict, Finding)]


class DetectorRollout:
    """The status of every detector, carried from cycle to cycle."""

    def __init__(self, trial: timedelta = TRIAL) -> None:
        """``trial`` is the history that a statistical detector learns before it may alert."""
        self._trial = trial
        self._statuses: dict[str, DetectorStatus] = {}

    def copy(self) -> DetectorRollout:
        """Returns a copy that can be changed without effect on this one."""
        other = DetectorRollout(self._trial)
        other.restore(self._statuses.values())
        return other

    def restore(self, statuses: Iterable[DetectorStatus]) -> None:
        """Restores the statuses from before a restart."""
        self._statuses = {status.detector: status for status in statuses}

    @property
    def detector_statuses(self) -> Mapping[str, DetectorStatus]:
        """Statuses by detector name."""
        return self._statuses

    def judge(self, run: DetectorRun, now: datetime) -> DetectorStatus:
        """Returns the status of a detector after a cycle."""
        before = self._statuses.get(run.detector.name)
        learner = run.detector if isinstance(run.detector, LearningDetector) else None
        learned = learner.learnt(run.state) if learner else None
        rate = learner.alarm_rate(run.state) if learner else None
        stage, reason = self._stage(run, before, learned, rate, weekly=learner is not None and learner.weekly)
        same = before is not None and (before.stage, before.reason) == (stage, reason)
        silent, everyone = _silences(run.verdicts)
        findings = run.findings
        status = DetectorStatus(
            detector=run.detector.name,
            kind=run.detector.kind,
            stage=stage,
            reason=reason,
            since=before.since if same and before else now,
            entities=run.entities,
            findings=len(findings),
            silent=silent,
            everyone_silent=everyone,
            learnt_seconds=learned.total_seconds() if learned is not None else None,
            needed_seconds=self._trial.total_seconds() if learner else None,
            rate=rate,
            shadowed=_shadowed(findings) if stage is Stage.SHADOW else (),
        )
        self._statuses[status.detector] = status
        return status

    def _stage(
        self,
        run: DetectorRun,
        before: DetectorStatus | None,
        learned: timedelta | None,
        rate: AlarmRate | None,
        *,
        weekly: bool,
    ) -> tuple[Stage, StageReason]:
        if learned is None or rate is None:
            return Stage.ALERTING, StageReason.NEEDS_NO_PAST
        if _warming_up(run):
            return Stage.LEARNING, StageReason.TOO_LITTLE_PAST
        if learned <= timedelta(0):
            return Stage.LEARNING, StageReason.NOTHING_SEEN
        if learned < self._trial:
            return Stage.SHADOW, StageReason.ON_TRIAL
        was_over = before is not None and before.reason is StageReason.OVER_BUDGET
        if _likely_rate(rate) > rate.budget * (BACK_WITHIN if was_over else FAR_OVER):
            return Stage.SHADOW, StageReason.OVER_BUDGET
        only_day = weekly and learned < MATURE
        return Stage.ALERTING, StageReason.LEARNT_DAY if only_day else StageReason.LEARNT


def alertable_verdicts(
    status: DetectorStatus, verdicts: Sequence[Finding | NoVerdict]
) -> Sequence[Finding | NoVerdict]:
    """Returns the verdicts that may raise alerts: none in shadow mode. Existing alerts are kept meanwhile."""
    if status.stage is not Stage.SHADOW:
        return verdicts
    silent = [verdict for verdict in verdicts if isinstance(verdict, NoVerdict)]
    return (*silent, NoVerdict(status.detector, None, NoVerdictReason.WARMING_UP))


def as_stored(status: DetectorStatus) -> DetectorStatus:
    """Returns the status with a limited number of the newest shadow findings."""
    newest = sorted(status.shadowed, key=lambda finding: finding.since, reverse=True)[:_SHOWN]
    return replace(status, shadowed=tuple(newest))


def _warming_up(run: DetectorRun) -> bool:
    """True if no entity has a verdict, and the history of some is too short."""
    silent = [verdict for verdict in run.verdicts if isinstance(verdict, NoVerdict)]
    common_reasons = {verdict.reason for verdict in silent if verdict.entity is None}
    if common_reasons:
        return NoVerdictReason.WARMING_UP in common_reasons
    all_silent = run.entities > 0 and len({verdict.entity for verdict in silent}) >= run.entities
    return all_silent and any(verdict.reason is NoVerdictReason.WARMING_UP for verdict in silent)


def _likely_rate(rate: AlarmRate) -> float:
    days = rate.entity_days
    alarms = (rate.realised or 0.0) * days
    return (alarms + rate.budget * PRIOR_ENTITY_DAYS) / (days + PRIOR_ENTITY_DAYS)


def _silences(
    verdicts: Iterable[Finding | NoVerdict],
) -> tuple[dict[NoVerdictReason, int], NoVerdictReason | None]:
    silent = [verdict for verdict in verdicts if isinstance(verdict, NoVerdict)]
    everyone = next((verdict.reason for verdict in silent if verdict.entity is None), None)
    return dict(Counter(verdict.reason for verdict in silent if verdict.entity is not None)), everyone


def _shadowed(findings: Iterable[Finding]) -> tuple[ShadowFinding, ...]:
    return tuple(ShadowFinding(finding.entity, finding.signals, finding.window.start) for finding in findings)
