"""Protocol data of the collectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.model import EntityRef, Event, SampleBatch
from outrider.topology import Edge


@dataclass(frozen=True, slots=True)
class Collected:
    """What one round of collection brought. ``edges`` and ``labels`` are topology seen on the pages."""

    batches: tuple[SampleBatch, ...] = ()
    events: tuple[Event, ...] = ()
    edges: tuple[Edge, ...] = ()
    labels: Mapping[EntityRef, Mapping[str, str]] | None = None
