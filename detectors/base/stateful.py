"""Base class of detectors with per-entity state: window validation, state alignment, checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from detectors.base.condition_durations import unseen, unusable_reason
from detectors.base.state_arrays import Arrays, align, empty, scalars
from outrider.model import DetectorState, EntityKind, Finding, NoVerdict, SignalKey, Window
from outrider.topology import Topology


class StatefulDetector(ABC):
    """Outer half of a detector; ``judge`` is the inner half. ``defaults`` is the state of a new entity."""

    name: str
    kind: EntityKind
    keys: tuple[SignalKey, ...]
    window: timedelta
    state_version: int
    defaults: ClassVar[Mapping[str, Any]]

    def initial(self) -> DetectorState:
        """Returns the state without any entity."""
        return empty(self.state_version, self.defaults)

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """Judges a window. An unusable window leaves the state unchanged and returns its reason.

        An entity without any value gets no verdict, whatever the detector returns.
        """
        reason = unusable_reason(window, now.timestamp())
        if reason is not None:
            return state, (NoVerdict(self.name, None, reason),)
        memory = {**align(state, window.entities, self.defaults), **scalars(state, self.of_class())}
        verdicts = tuple(self.judge(window, memory, topology, now))
        quiet = unseen(self.name, window, verdicts)
        return DetectorState(self.state_version, window.entities, memory), (*verdicts, *quiet)

    def of_class(self) -> Arrays:
        """State of the whole class besides that of entities, as arrays of any shape. Empty by default."""
        return {}

    @abstractmethod
    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Returns the verdicts on the window's entities. Changes ``memory``.

        ``memory`` holds arrays of shape (entities,) and those of ``of_class``.
        """
