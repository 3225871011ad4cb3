"""Runs every detector on its window. Pure: the memory of the detectors is handed in and out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from detectors.base.protocols import AlertFeedback, FeedbackDetector, ResumableDetector
from detectors.learning.dormant_state import DormantState
from outrider.model import (
    DetectorState,
    DetectorStatus,
    EntityKind,
    Finding,
    ForecastView,
    NoVerdict,
    SignalKey,
    Stage,
    StageReason,
    Window,
)
from outrider.ports import Detector, LocalizingDetector
from outrider.topology import Topology
from service.engine import detector_rollout
from service.engine.detector_rollout import DetectorRollout, DetectorRun

STATUS_INTERVAL = timedelta(minutes=1)


class RecentValues(Protocol):
    """The values of the most recent cycles."""

    def window(self, kind: EntityKind, keys: Sequence[SignalKey], span: timedelta) -> Window:
        """Returns the values of ``span`` before the newest cycle, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class DetectionInputs:
    """Input of one run of all detectors. ``forecast`` and ``feedback`` are None if there is nothing to hand in."""

    now: datetime
    topology: Topology
    values: RecentValues
    forecast: ForecastView | None = None
    feedback: Sequence[AlertFeedback] | None = None


@dataclass(frozen=True, slots=True)
class DetectionResult:
    """Result of one run of all detectors.

    ``findings`` include those of detectors on trial: they are evidence for alerts of others. ``alertable`` holds the
    findings that may raise alerts, and every NoVerdict. ``detector_statuses`` are empty if none has to be stored.
    """

    findings: tuple[Finding, ...]
    alertable: tuple[Finding | NoVerdict, ...]
    detector_statuses: tuple[DetectorStatus, ...]


@dataclass(slots=True, eq=False)
class DetectionMemory:
    """State that detectors carry from cycle to cycle.

    ``states`` and ``dormant`` are by detector name. ``kinds`` are the kinds of entities that had values at least once.
    ``reported`` is the stage and reason of each detector in the newest statuses, written at ``reported_at``.
    """

    rollout: DetectorRollout
    states: dict[str, DetectorState] = field(default_factory=dict)
    dormant: dict[str, DormantState] = field(default_factory=dict)
    kinds: frozenset[EntityKind] = frozenset()
    reported: Mapping[str, tuple[Stage, StageReason]] = field(default_factory=dict)
    reported_at: datetime | None = None

    def copy(self) -> DetectionMemory:
        """Returns a copy that can be changed without effect on this one. Arrays are shared, for none is written to."""
        dormant = {name: copy(rows) for name, rows in self.dormant.items()}
        return replace(self, rollout=self.rollout.copy(), states=dict(self.states), dormant=dormant)


class DetectorSet:
    """The detectors of one platform, without any memory."""

    def __init__(self, detectors: Sequence[Detector], interval: timedelta, trial: timedelta) -> None:
        """``interval`` is the time between cycles. ``trial`` is the history learned before a detector may alert."""
        self.detectors = tuple(detectors)
        self.interval = interval
        self._trial = trial

    def only(self, names: Collection[str]) -> DetectorSet:
        """Returns the set of these detectors alone."""
        chosen = [detector for detector in self.detectors if detector.name in names]
        return DetectorSet(chosen, self.interval, self._trial)

    def initial(self) -> DetectionMemory:
        """Returns the memory before the first cycle."""
        resumable = (detector for detector in self.detectors if isinstance(detector, ResumableDetector))
        dormant = {detector.name: DormantState(detector, self.interval) for detector in resumable}
        return DetectionMemory(DetectorRollout(self._trial), dormant=dormant)

    def detect(self, memory: DetectionMemory, inputs: DetectionInputs) -> tuple[DetectionResult, DetectionMemory]:
        """Runs every detector once. Returns the result and the new memory; ``memory`` does not change."""
        memory = memory.copy()
        findings: list[Finding] = []
        alertable: list[Finding | NoVerdict] = []
        for detector in self.detectors:
            if (
                inputs.feedback is not None
                and isinstance(detector, FeedbackDetector)
                and detector.name in memory.states
            ):
                memory.states[detector.name] = detector.teach(memory.states[detector.name], inputs.feedback)
        for detector in self.detectors:
            run = _run(detector, memory, inputs)
            memory.states[detector.name] = run.state
            status = memory.rollout.judge(run, inputs.now)
            findings += run.findings
            alertable += detector_rollout.alertable_verdicts(status, run.verdicts)
        return DetectionResult(tuple(findings), tuple(alertable), _due_statuses(memory, inputs.now)), memory


def state_of(detector: Detector, memory: DetectionMemory) -> DetectorState:
    """Returns the state of a detector, or its initial state if there is none of its version."""
    state = memory.states.get(detector.name)
    return state if state is not None and state.version == detector.state_version else detector.initial()


def _run(detector: Detector, memory: DetectionMemory, inputs: DetectionInputs) -> DetectorRun:
    """Runs one detector. Changes the dormant state and the kinds of ``memory``."""
    window = inputs.values.window(detector.kind, detector.keys, detector.window)
    if detector.kind is EntityKind.SERVICE:
        window = replace(window, foreseen=inputs.forecast)
    if window.entities:
        memory.kinds |= {detector.kind}
    before = state_of(detector, memory)
    dormant = memory.dormant.get(detector.name)
    if dormant is not None and detector.kind in memory.kinds:
        before = dormant.swap(before, window.entities, inputs.now.timestamp())
    state, verdicts = detector.detect(before, window, inputs.topology, inputs.now)
    state, verdicts = _localized(detector, state, verdicts, window, inputs)
    # cycles before the first values are not a departure of all entities
    state = state if detector.kind in memory.kinds else before
    return DetectorRun(detector, state, len(window.entities), verdicts)


def _localized(
    detector: Detector,
    state: DetectorState,
    verdicts: tuple[Finding | NoVerdict, ...],
    window: Window,
    inputs: DetectionInputs,
) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
    """Returns the verdicts after a detector with ``beside`` has read the values of its other kind."""
    if not isinstance(detector, LocalizingDetector) or not detector.wants_beside(state, verdicts):
        return state, verdicts
    kind, keys = detector.beside
    beside = inputs.values.window(kind, keys, detector.window)
    return detector.placed(state, verdicts, window, beside, inputs.topology, inputs.now)


def _due_statuses(memory: DetectionMemory, now: datetime) -> tuple[DetectorStatus, ...]:
    """Returns the statuses once a minute, and at once if a stage changed. Changes ``memory``."""
    statuses = memory.rollout.detector_statuses.values()
    stages = {status.detector: (status.stage, status.reason) for status in statuses}
    at = memory.reported_at
    if stages == memory.reported and at is not None and timedelta(0) <= now - at < STATUS_INTERVAL:
        return ()
    memory.reported, memory.reported_at = stages, now
    return tuple(detector_rollout.as_stored(status) for status in statuses)
