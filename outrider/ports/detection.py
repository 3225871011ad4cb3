"""Protocols of the detectors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from outrider.model import DetectorState, EntityKind, Finding, NoVerdict, SignalKey, Window
from outrider.topology import Topology


class Detector(Protocol):
    """A pure detector: what it needs is declared, what it remembers is handed in and out."""

    name: str
    kind: EntityKind
    keys: tuple[SignalKey, ...]
    window: timedelta
    state_version: int

    def initial(self) -> DetectorState:
        """The state before anything was seen."""
        ...

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """Look at the window. Never raises on odd values; says NoVerdict instead."""
        ...


@runtime_checkable
class LocalizingDetector(Protocol):
    """A detector that may ask for values of another kind, to say which component its verdicts are about.

    ``beside`` is that kind and its keys.
    """

    beside: tuple[EntityKind, tuple[SignalKey, ...]]

    def wants_beside(self, state: DetectorState, verdicts: Sequence[Finding | NoVerdict]) -> bool:
        """True when ``placed`` would add something; the values are not fetched otherwise."""
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
        """The state and verdicts of ``detect`` once those values were seen. Never raises on odd values."""
        ...
