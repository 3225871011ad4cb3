"""Data model of target discovery."""

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
    """One page. ``labels`` are the source's own labels, including ``__scheme__`` and ``__metrics_path__``.

    ``adapter`` is set if the source knows it. ``identity`` distinguishes successive holders of an address: when it
    changes, the history of the former holder does not apply.
    """

    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    adapter: str | None = None
    identity: str = ""


@dataclass(frozen=True, slots=True)
class DiscoverySnapshot:
    """Current state of a source. ``faults`` are parts that could not be read and keep their last state."""

    targets: tuple[DiscoveredTarget, ...] = ()
    edges: tuple[Edge, ...] = ()
    labels: Labels = field(default_factory=dict)
    faults: tuple[CollectError, ...] = ()


class TargetSource(Protocol):
    """One source of targets."""

    @property
    def name(self) -> str:
        """Unique among the sources."""
        ...

    @property
    def every(self) -> timedelta:
        """Minimum interval between two readings."""
        ...

    async def read(self) -> DiscoverySnapshot:
        """All current targets; the same object if nothing changed. Raises CollectError."""
        ...

    async def close(self) -> None:
        """Releases resources."""
        ...
