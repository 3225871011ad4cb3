"""What a source of targets found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from outrider.errors import CollectError
from outrider.model import EntityRef
from outrider.topology import Edge

Labels = Mapping[EntityRef, Mapping[str, str]]
ADDRESS = r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>\d{1,5}))?"
SCHEME, PATH = "__scheme__", "__metrics_path__"


@dataclass(frozen=True, slots=True)
class DiscoveredTarget:
    """One page. ``labels`` are the source's own words, ``__scheme__`` and ``__metrics_path__`` among them.

    ``adapter`` is set where the source knows. ``identity`` tells one holder of an address from the next: when
    it changes, what was known of the former says nothing of the latter.
    """

    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    adapter: str | None = None
    identity: str = ""


@dataclass(frozen=True, slots=True)
class DiscoverySnapshot:
    """Everything a source knows now. ``faults`` are parts that could not be read and stand as they last were."""

    found: tuple[DiscoveredTarget, ...] = ()
    edges: tuple[Edge, ...] = ()
    labels: Labels = field(default_factory=dict)
    faults: tuple[CollectError, ...] = ()


class TargetSource(Protocol):
    """One place where targets are listed."""

    @property
    def name(self) -> str:
        """Unique among the sources."""
        ...

    @property
    def every(self) -> timedelta:
        """The least time between two readings."""
        ...

    async def read(self) -> DiscoverySnapshot:
        """Everything there is now; the very same object when nothing changed. Raises CollectError."""
        ...

    async def close(self) -> None:
        """Release what is open."""
        ...
