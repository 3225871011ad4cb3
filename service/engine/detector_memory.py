"""The detectors of one platform with their recent values and their memory; checkpoints and warm-up from the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from detectors.base.protocols import FineWarmableDetector, RestorableDetector, WarmableDetector
from outrider import log, windows
from outrider.model import DetectorState, EntityKind, ForecastView, SignalKey, Statistic, Window
from outrider.ports import Collected, Detector, LocalizingDetector, MetricStore, StateStore
from outrider.topology import Topology
from service.engine import detector_rollout
from service.engine.detect import DetectionInputs, DetectionMemory, DetectionResult, DetectorSet, state_of
from service.engine.window_cache import WindowCache

_log = log.get("detect")
RAW = timedelta(days=2)  # default retention of raw values
DORMANT_SUFFIX = "/away"  # after a detector's name: its checkpoint of entities that left
WARM_STEP = timedelta(minutes=10)  # no finer than the roll-up that remains of most of the history


class Detection:
    """The detectors of one platform, their recent values and their memory."""

    def __init__(
        self,
        detectors: Sequence[Detector],
        interval: timedelta,
        also: Mapping[EntityKind, Sequence[SignalKey]] | None = None,
        trial: timedelta = detector_rollout.TRIAL,
    ) -> None:
        """``interval`` is the time between cycles; it decides how many slots a window holds.

        ``also`` are further keys to keep in memory, for uses other than detection. ``trial`` is the history that a
        statistical detector learns before it may alert.
        """
        self.detector_set = DetectorSet(detectors, interval, trial)
        self.memory = self.detector_set.initial()
        needs: dict[EntityKind, dict[SignalKey, None]] = {}
        for detector in self.detector_set.detectors:
            needs.setdefault(detector.kind, {}).update(dict.fromkeys(detector.keys))
            if isinstance(detector, LocalizingDetector):
                kind, beside = detector.beside
                needs.setdefault(kind, {}).update(dict.fromkeys(beside))
        for kind, keys in (also or {}).items():
            needs.setdefault(kind, {}).update(dict.fromkeys(keys))
        longest = max((detector.window for detector in self.detector_set.detectors), default=interval)
        self._cache = WindowCache(needs, max(3, int(longest / interval) + 2))

    @property
    def interval(self) -> timedelta:
        """The configured time between cycles."""
        return self.detector_set.interval

    def observe(self, now: datetime, collected: Collected) -> None:
        """Adds the values and events of one cycle to the recent values."""
        self._cache.push(now, collected.batches, collected.events)

    def window(self, kind: EntityKind, keys: Sequence[SignalKey], span: timedelta) -> Window:
        """Returns the recent values of keys that a detector reads or ``also`` names."""
        return self._cache.window(kind, keys, span, self.interval)

    def run(
        self, now: datetime, collected: Collected, topology: Topology, forecast: ForecastView | None = None
    ) -> DetectionResult:
        """Adds one cycle's values, runs every detector and keeps the new memory."""
        self.observe(now, collected)
        return self.detect(DetectionInputs(now, topology, self, forecast))

    def detect(self, inputs: DetectionInputs) -> DetectionResult:
        """Runs every detector and keeps the new memory."""
        result, self.memory = self.detector_set.detect(self.memory, inputs)
        return result

    def restore(self, store: StateStore) -> None:
        """Loads the newest checkpoint.

        A state of another version, of other signals or damaged is dropped and logged; ``warm`` then teaches those
        detectors anew.
        """
        stored = store.load_detector_states()
        names = {detector.name for detector in self.detector_set.detectors}
        self.memory.rollout.restore(status for status in store.detector_statuses() if status.detector in names)
        self.memory.states = {}
        for detector in self.detector_set.detectors:
            _restore(detector, self.memory, stored.get(detector.name), stored.get(detector.name + DORMANT_SUFFIX))

    def checkpoint(self, store: StateStore, now: datetime) -> None:
        """Writes the states of the detectors, and their dormant states."""
        states = self.memory.states
        dormant = {
            name + DORMANT_SUFFIX: stored
            for name, rows in self.memory.dormant.items()
            if name in states and (stored := rows.stored(states[name].version)) is not None
        }
        store.save_detector_states({**states, **dormant}, now)

    def warm(self, metrics: MetricStore, now: datetime, history: timedelta, raw: timedelta = RAW) -> None:
        """Teaches detectors without a state the history of the store.

        A detector with a step finer than the roll-ups learns the newest part, ``raw`` long, at that step.
        """
        for detector in self.detector_set.detectors:
            if not isinstance(detector, WarmableDetector) or detector.name in self.memory.states:
                continue
            step, statistic = WARM_STEP, Statistic.LAST
            if isinstance(detector, FineWarmableDetector):
                step, statistic = min(detector.warm_step, WARM_STEP), detector.warm_statistic
            fine_from = now - min(raw, history) if step < WARM_STEP else now
            for start, end, spacing in ((now - history, fine_from, WARM_STEP), (fine_from, now, step)):
                if start >= end:
                    continue
                window = metrics.read_windows(detector.kind, detector.keys, start, end, spacing, statistic=statistic)
                if window.entities:
                    state = state_of(detector, self.memory)
                    self.memory.states[detector.name] = detector.warm(state, windows.finite(window))
                    _log.info("detector_warmed", detector=detector.name, entities=len(window.entities))


def _restore(
    detector: Detector, memory: DetectionMemory, state: DetectorState | None, dormant: DetectorState | None
) -> None:
    """Restores one detector. Its dormant state is not used if the rest of the checkpoint is not usable."""
    if (rows := memory.dormant.get(detector.name)) is not None:
        rows.restore(None, stored=dormant is not None)
    if state is None:
        return
    if state.version != detector.state_version:
        _log_dropped(detector, f"it has version {state.version}, this program has {detector.state_version}")
        return
    reason = ""
    if isinstance(detector, RestorableDetector):
        state, reason = detector.restored(state)
    if reason:
        _log_dropped(detector, reason)
    if not reason or state.entities:
        memory.states[detector.name] = state
        if rows is not None and dormant is not None and dormant.version == state.version:
            rows.restore(dormant)


def _log_dropped(detector: Detector, reason: str) -> None:
    _log.warning("detector_state_dropped", detector=detector.name, because=reason)
