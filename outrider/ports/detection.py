"""Protocols of the detectors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from outrider.model import DetectorState, EntityKind, Finding, NoVerdict, SignalKey, Window
from outrider.topology import Topology


class Detector(Protocol):
    """A pure detector: its input is declared, its state is passed in and returned."""

    name: str
    kind: EntityKind
    keys: tuple[SignalKey, ...]
    window: timedelta
    state_version: int

    def initial(self) -> DetectorState:
        """The initial state."""
        ...

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """Evaluates the window. Never raises on unexpected values; returns NoVerdict instead."""
        ...


@runtime_checkable
class LocalizingDetector(Protocol):
    """A detector that may read values of a second kind, to locate the faulty component of its verdicts.

    ``beside`` is that kind and its keys.
    """

    beside: tuple[EntityKind, tuple[SignalKey, ...]]

    def wants_beside(self, state: DetectorState, verdicts: Sequence[Finding | NoVerdict]) -> bool:
        """True if ``placed`` can refine a verdict; otherwise the values are not read."""
        ...

    def placed(
        self,
        state: DetectorState,
        verdicts: Sequence[Finding | NoVerdict],
        window: Window,
        beside: Window,
        topology: Topology,
        now: datetime,
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """State and verdicts of ``detect``, refined by those values. Never raises on unexpected values."""
        ...
