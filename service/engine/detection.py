"""Runs every detector on its window and carries its state from cycle to cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from detectors.base.protocols import (
    AlertFeedback,
    FeedbackDetector,
    FineWarmableDetector,
    RestorableDetector,
    ResumableDetector,
    WarmableDetector,
)
from detectors.learning.dormant_state import Attic
from outrider import log, windows
from outrider.model import (
    DetectorStanding,
    DetectorState,
    EntityKind,
    Finding,
    ForecastView,
    NoVerdict,
    SignalKey,
    Stage,
    StageReason,
    Statistic,
    Window,
)
from outrider.ports import Collected, Detector, MetricStore, Placing, StateStore
from outrider.topology import Topology
from service.engine import detector_rollout
from service.engine.window_cache import WindowCache

_log = log.get("detect")
STANDINGS_EVERY = timedelta(minutes=1)
RAW = timedelta(days=2)  # how long values are kept as they were collected, where nobody says otherwise
AWAY = "/away"  # after the name of a detector: the check-point of what it remembers of those that are away
WARM_STEP = timedelta(minutes=10)  # not finer than the roll-up that is left of most of the history


@dataclass(frozen=True, slots=True)
class DetectionResult:
    """What one cycle saw.

    ``findings`` are all, those in the shadow too: they are evidence for what alerts. ``heard`` is what alerts may
    rise from, with every silence. ``standings`` are empty when nothing is to be stored.
    """

    findings: tuple[Finding, ...]
    heard: tuple[Finding | NoVerdict, ...]
    standings: tuple[DetectorStanding, ...]


class Detection:
    """The detectors of one platform with what they remember."""

    def __init__(
        self,
        detectors: Sequence[Detector],
        interval: timedelta,
        also: Mapping[EntityKind, Sequence[SignalKey]] | None = None,
        trial: timedelta = detector_rollout.TRIAL,
    ) -> None:
        """``interval`` is the time between cycles; it decides how many slots a window holds.

        ``also`` are keys kept in memory for facts beside detection. ``trial`` is how much past a statistical
        detector learns before it may alert.
        """
        self._detectors = tuple(detectors)
        self._interval = interval
        needs: dict[EntityKind, dict[SignalKey, None]] = {}
        for detector in self._detectors:
            needs.setdefault(detector.kind, {}).update(dict.fromkeys(detector.keys))
            if isinstance(detector, Placing):
                other, others = detector.beside
                needs.setdefault(other, {}).update(dict.fromkeys(others))
        for kind, keys in (also or {}).items():
            needs.setdefault(kind, {}).update(dict.fromkeys(keys))
        longest = max((detector.window for detector in self._detectors), default=interval)
        slots = max(3, int(longest / interval) + 2)
        self._cache = WindowCache(needs, slots)
        self._states: dict[str, DetectorState] = {}
        self._attics = {one.name: Attic(one, interval) for one in self._detectors if isinstance(one, ResumableDetector)}
        self._seen: set[EntityKind] = set()
        self._stages = detector_rollout.DetectorRollout(trial)
        self._told: dict[str, tuple[Stage, StageReason]] = {}
        self._told_at: datetime | None = None

    def look(self, now: datetime, collected: Collected, topology: Topology, foreseen: ForecastView | None = None) -> DetectionResult:
        """Take in one cycle's values and ask every detector; ``foreseen`` is what was forecast of services."""
        self._cache.push(now, collected.batches, collected.events)
        findings: list[Finding] = []
        heard: list[Finding | NoVerdict] = []
        for detector in self._detectors:
            window = self._cache.window(detector.kind, detector.keys, detector.window, self._interval)
            if detector.kind is EntityKind.SERVICE:
                window = replace(window, foreseen=foreseen)
            if window.entities:
                self._seen.add(detector.kind)
            before = self._state_of(detector)
            if (attic := self._attics.get(detector.name)) is not None and detector.kind in self._seen:
                before = attic.exchange(before, window.entities, now.timestamp())
            state, verdicts = detector.detect(before, window, topology, now)
            state, verdicts = self._placed(detector, state, verdicts, window, topology, now)
            # the first cycles may come before the first values, and nobody has left then
            state = state if detector.kind in self._seen else before
            self._states[detector.name] = state
            standing = self._stages.judge(detector_rollout.DetectorRun(detector, state, len(window.entities), verdicts), now)
            findings += [verdict for verdict in verdicts if isinstance(verdict, Finding)]
            heard += detector_rollout.alertable_verdicts(standing, verdicts)
        return DetectionResult(tuple(findings), tuple(heard), self._to_tell(now))

    def _placed(
        self,
        detector: Detector,
        state: DetectorState,
        verdicts: tuple[Finding | NoVerdict, ...],
        window: Window,
        topology: Topology,
        now: datetime,
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """What a detector makes of its verdicts when it sees values of another kind (those with ``beside``)."""
        if not isinstance(detector, Placing) or not detector.wants_beside(state, verdicts):
            return state, verdicts
        kind, keys = detector.beside
        other = self._cache.window(kind, keys, detector.window, self._interval)
        return detector.placed(state, verdicts, window, other, topology, now)

    def teach(self, lessons: Sequence[AlertFeedback]) -> None:
        """Tell detectors that learn from verdicts (those with ``teach``) all that was said."""
        for detector in self._detectors:
            if isinstance(detector, FeedbackDetector) and detector.name in self._states:
                self._states[detector.name] = detector.teach(self._states[detector.name], lessons)

    def _to_tell(self, now: datetime) -> tuple[DetectorStanding, ...]:
        """The standings once a minute, and at once where a stage changed."""
        found = self._stages.standings.values()
        told = {one.detector: (one.stage, one.reason) for one in found}
        at = self._told_at
        if told == self._told and at is not None and timedelta(0) <= now - at < STANDINGS_EVERY:
            return ()
        self._told, self._told_at = told, now
        return tuple(detector_rollout.as_stored(one) for one in found)

    @property
    def interval(self) -> timedelta:
        """The time between cycles, as it was ordered."""
        return self._interval

    def window(self, kind: EntityKind, keys: Sequence[SignalKey], span: timedelta) -> Window:
        """The recent past of keys that some detector watches; for facts beside detection."""
        return self._cache.window(kind, keys, span, self._interval)

    def _state_of(self, detector: Detector) -> DetectorState:
        state = self._states.get(detector.name)
        if state is not None and state.version == detector.state_version:
            return state
        return detector.initial()

    def restore(self, store: StateStore) -> None:
        """Take up the newest check-point.

        What is of another version, of other signals or damaged is dropped with a line in the log, so that ``warm``
        teaches those detectors anew.
        """
        held = store.load_detector_states()
        known = {detector.name for detector in self._detectors}
        self._stages.restore(one for one in store.standings() if one.detector in known)
        self._states = {}
        for detector in self._detectors:
            self._take_up(detector, held.get(detector.name), held.get(detector.name + AWAY))

    def _take_up(self, detector: Detector, state: DetectorState | None, away: DetectorState | None) -> None:
        """One detector's part of a check-point; of ``away`` nothing where the rest of it cannot be used."""
        if (attic := self._attics.get(detector.name)) is not None:
            attic.restore(None, stored=away is not None)
        if state is None:
            return
        if state.version != detector.state_version:
            _dropped(detector, f"it is of version {state.version}, this program's is {detector.state_version}")
            return
        because = ""
        if isinstance(detector, RestorableDetector):
            state, because = detector.restored(state)
        if because:
            _dropped(detector, because)
        if not because or state.entities:
            self._states[detector.name] = state
            if attic is not None and away is not None and away.version == state.version:
                attic.restore(away)

    def checkpoint(self, store: StateStore, now: datetime) -> None:
        """Write what the detectors remember, of those that are away, too."""
        away = {
            name + AWAY: stored
            for name, attic in self._attics.items()
            if name in self._states and (stored := attic.stored(self._states[name].version)) is not None
        }
        store.save_detector_states({**self._states, **away}, now)

    def warm(self, metrics: MetricStore, now: datetime, history: timedelta, raw: timedelta = RAW) -> None:
        """Teach detectors that learn from history (those with ``warm``) what the store knows.

        A detector with a ``warm_step`` finer than the roll-ups is taught the last of it, ``raw`` long, at that step.
        """
        for detector in self._detectors:
            if not isinstance(detector, WarmableDetector) or detector.name in self._states:
                continue
            step, statistic = WARM_STEP, Statistic.LAST
            if isinstance(detector, FineWarmableDetector):
                step, statistic = min(detector.warm_step, WARM_STEP), detector.warm_statistic
            turn = now - min(raw, history) if step < WARM_STEP else now
            for start, end, spacing in ((now - history, turn, WARM_STEP), (turn, now, step)):
                if start >= end:
                    continue
                window = metrics.read_windows(detector.kind, detector.keys, start, end, spacing, statistic=statistic)
                if window.entities:
                    self._states[detector.name] = detector.warm(self._state_of(detector), windows.finite(window))
                    _log.info("detector_warmed", detector=detector.name, entities=len(window.entities))


def _dropped(detector: Detector, because: str) -> None:
    _log.warning("detector_state_dropped", detector=detector.name, because=because)
