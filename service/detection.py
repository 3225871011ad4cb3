"""Runs every detector on its window and carries its state from cycle to cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from outrider import log
from outrider.model import DetectorState, EntityKind, Finding, NoVerdict, SignalKey, Window
from outrider.ports import Collected, Detector, MetricStore, StateStore
from outrider.topology import Topology
from service.window_cache import WindowCache

_log = log.get("detect")
WARM_STEP = timedelta(minutes=10)  # not finer than the roll-up that is left of most of the history


class Detection:
    """The detectors of one platform with what they remember."""

    def __init__(
        self,
        detectors: Sequence[Detector],
        interval: timedelta,
        also: Mapping[EntityKind, Sequence[SignalKey]] | None = None,
    ) -> None:
        """``interval`` is the time between cycles; it decides how many slots a window holds.

        ``also`` are keys kept in memory for facts beside detection.
        """
        self._detectors = tuple(detectors)
        self._interval = interval
        needs: dict[EntityKind, dict[SignalKey, None]] = {}
        for detector in self._detectors:
            needs.setdefault(detector.kind, {}).update(dict.fromkeys(detector.keys))
        for kind, keys in (also or {}).items():
            needs.setdefault(kind, {}).update(dict.fromkeys(keys))
        longest = max((detector.window for detector in self._detectors), default=interval)
        slots = max(3, int(longest / interval) + 2)
        self._cache = WindowCache(needs, slots)
        self._states: dict[str, DetectorState] = {}

    def look(
        self, now: datetime, collected: Collected, topology: Topology
    ) -> tuple[tuple[Finding, ...], tuple[NoVerdict, ...]]:
        """Take in one cycle's values and ask every detector."""
        self._cache.push(now, collected.batches, collected.events)
        findings: list[Finding] = []
        silent: list[NoVerdict] = []
        for detector in self._detectors:
            window = self._cache.window(detector.kind, detector.keys, detector.window, self._interval)
            state, verdicts = detector.detect(self._state_of(detector), window, topology, now)
            self._states[detector.name] = state
            for verdict in verdicts:
                if isinstance(verdict, Finding):
                    findings.append(verdict)
                else:
                    silent.append(verdict)
        return tuple(findings), tuple(silent)

    def window(self, kind: EntityKind, keys: Sequence[SignalKey], span: timedelta) -> Window:
        """The recent past of keys that some detector watches; for facts beside detection."""
        return self._cache.window(kind, keys, span, self._interval)

    def _state_of(self, detector: Detector) -> DetectorState:
        state = self._states.get(detector.name)
        if state is not None and state.version == detector.state_version:
            return state
        return detector.initial()

    def restore(self, store: StateStore) -> None:
        """Take up the newest check-point; states of another version start anew."""
        self._states = store.load_detector_states()

    def checkpoint(self, store: StateStore, now: datetime) -> None:
        """Write what the detectors remember."""
        store.save_detector_states(self._states, now)

    def warm(self, metrics: MetricStore, now: datetime, history: timedelta) -> None:
        """Teach detectors that learn from history (those with ``warm``) what the store knows."""
        for detector in self._detectors:
            warm = getattr(detector, "warm", None)
            if warm is None or detector.name in self._states:
                continue
            window = metrics.read_windows(detector.kind, detector.keys, now - history, now, WARM_STEP)
            if window.entities:
                self._states[detector.name] = warm(detector.initial(), window)
                _log.info("detector_warmed", detector=detector.name, entities=len(window.entities))
