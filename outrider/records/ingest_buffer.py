"""What senders pushed, on its way from the processes that receive to the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PushedBlock:
    """What one request of a sender brought, on its way from the API to the engine.

    ``id`` rises with arrival; 0 before it is stored. ``payload`` is the collectors' own format.
    """

    door: str
    sender: str
    came_at: datetime
    samples: int
    payload: bytes
    id: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """How much waits for the engine."""

    blocks: int
    samples: int
    bytes: int


class IngestBuffer(Protocol):
    """Pushed blocks between the processes that receive and the engine. Durable, bounded, oldest first."""

    def put(self, block: PushedBlock, most_bytes: int) -> bool:
        """Store a block; False, and nothing is stored, when ``most_bytes`` would wait then."""
        ...

    def take(self, after: int, most_samples: int) -> tuple[PushedBlock, ...]:
        """The oldest blocks with an id above ``after``, up to so many samples, but one at least. They stay."""
        ...

    def release(self, until: int) -> None:
        """Forget every block up to this id: what it brought has been written."""
        ...

    def waiting(self) -> Waiting:
        """How much is there."""
        ...

    def count(self, dropped: Mapping[str, int]) -> None:
        """Add to what the engine left out, by reason."""
        ...

    def counted(self) -> dict[str, int]:
        """What the engine left out since the store was made, by reason."""
        ...

    def close(self) -> None:
        """Release every connection."""
        ...
