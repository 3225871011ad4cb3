"""What every detector with memory of its entities does around its judgement: refuse a window, follow, check-point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from detectors.base.condition_durations import unseen, unusable
from detectors.base.state_arrays import Arrays, align, empty, scalars
from outrider.model import DetectorState, EntityKind, Finding, NoVerdict, SignalKey, Window
from outrider.topology import Topology


class StatefulDetector(ABC):
    """The outer half of a detector; ``judge`` is the inner one. ``defaults`` is what is remembered of a new entity."""

    name: str
    kind: EntityKind
    keys: tuple[SignalKey, ...]
    window: timedelta
    state_version: int
    defaults: ClassVar[Mapping[str, Any]]

    def initial(self) -> DetectorState:
        """No entity known."""
        return empty(self.state_version, self.defaults)

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """Judge a window; one that cannot be used leaves the state as it is and has its reason.

        An entity without any value has no verdict, whatever the detector makes of it.
        """
        reason = unusable(window, now.timestamp())
        if reason is not None:
            return state, (NoVerdict(self.name, None, reason),)
        memory = {**align(state, window.entities, self.defaults), **scalars(state, self.of_class())}
        verdicts = tuple(self.judge(window, memory, topology, now))
        quiet = unseen(self.name, window, verdicts)
        return DetectorState(self.state_version, window.entities, memory), (*verdicts, *quiet)

    def of_class(self) -> Arrays:
        """What is remembered of the whole class beside that, as arrays of any shape: nothing where nobody says more."""
        return {}

    @abstractmethod
    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """What is said of the window's entities; changes ``memory``, whose arrays are of shape (entities,).

        Beside them stand those of ``of_class``.
        """
