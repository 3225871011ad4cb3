"""Pushed samples on their way from the receiving processes to the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PushedBlock:
    """Samples of one push request, on their way from the API to the engine.

    ``id`` increases with arrival; 0 before it is stored. ``payload`` is in the collectors' own format.
    """

    protocol: str
    sender: str
    came_at: datetime
    samples: int
    payload: bytes
    id: int = 0


@dataclass(frozen=True, slots=True)
class BufferSize:
    """Size of the buffer."""

    blocks: int
    samples: int
    bytes: int


class IngestBuffer(Protocol):
    """Pushed blocks between the receiving processes and the engine. Durable, bounded, oldest first."""

    def put(self, block: PushedBlock, most_bytes: int) -> bool:
        """Stores a block; returns False without storing it if the buffer would exceed ``most_bytes``."""
        ...

    def take(self, after: int, most_samples: int) -> tuple[PushedBlock, ...]:
        """The oldest blocks with an id above ``after``, up to a number of samples, but at least one. They stay."""
        ...

    def release(self, until: int) -> None:
        """Deletes every block up to this id, once its samples are written."""
        ...

    def waiting(self) -> BufferSize:
        """Size of the buffer."""
        ...

    def count(self, dropped: Mapping[str, int]) -> None:
        """Adds to the counts of rejected samples, by reason."""
        ...

    def counted(self) -> dict[str, int]:
        """Rejected samples since the store was created, by reason."""
        ...

    def close(self) -> None:
        """Releases every connection."""
        ...
