"""Markers of written timestamps, and the stamps of their samples.

A server has millisecond stamps, rejects a second number for a stamp, and deletes nothing. Each cycle therefore has a
stamp of its own, by default the millisecond of its timestamp; a second write of the timestamp takes the next free one.
The marker is written last: its stamp is that of the samples, its value the exact timestamp. Samples without a marker
are not read: an incomplete cycle does not count, and neither does a replaced one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from outrider.model import EntityKind
from store.remote.api_responses import Matrix, matrix, numbers
from store.remote.bodies import Stamps, single
from store.remote.client import Server
from store.remote.names import AGAIN, CYCLE_METRIC, FIRST, OWNER
from store.remote.selectors import Selector
from store.tsdb.chunk_codec import Micros

_SPARE = 50  # milliseconds after its timestamp in which a cycle must find a free stamp
_REMEMBERED = 5_000  # timestamps per kind: one day at 15 s
_LOOK_BACKS = ("2d", "400d", "7300d")  # look-back for the newest cycle
_AHEAD = 86_400  # seconds: the clock of a simulated fleet may be ahead


@dataclass(frozen=True, slots=True)
class MarkedCycle:
    """The cycles of a span in time order: stamps of their samples, and timestamps."""

    stamps: Stamps
    micros: Micros

    def positions(self, stamps: Stamps) -> NDArray[np.intp]:
        """The index of each stamp among the cycles, -1 for stamps without a marker."""
        order = np.argsort(self.stamps)
        at = np.minimum(np.searchsorted(self.stamps[order], stamps), max(0, self.stamps.size - 1))
        if not self.stamps.size:
            return np.full(stamps.shape, -1, dtype=np.intp)
        return np.where(self.stamps[order][at] == stamps, order[at], -1)


@dataclass(frozen=True, slots=True)
class Count:
    """Number of cycles of a span at their own millisecond, and at a later one."""

    first: int
    again: int


class Cycles:
    """Finds cycles on the server; caches those written by this process."""

    def __init__(self, server: Server) -> None:
        """Sends no request yet."""
        self._server = server
        self._lock = Lock()
        self._written: dict[EntityKind, OrderedDict[int, int]] = {}  # stamp -> instant
        self._newest: dict[EntityKind, int] = {}

    def selector(self, kind: EntityKind) -> Selector:
        """The markers of a kind."""
        return Selector(CYCLE_METRIC).equal(OWNER, self._server.remote.owner).equal("kind", kind.value)

    def free_stamp(self, kind: EntityKind, at: int) -> tuple[int, str]:
        """The stamp for a cycle at a timestamp (microseconds), and ``FIRST`` if it is the timestamp's own millisecond.

        Raises StoreUnavailableError.
        """
        first = at // 1000
        taken = self._taken(kind, first)
        stamp = next((stamp for stamp in range(first, first + _SPARE) if stamp not in taken), first + _SPARE - 1)
        return stamp, FIRST if stamp == first else AGAIN

    def _taken(self, kind: EntityKind, first: int) -> dict[int, int]:
        """The stamps in use from a stamp on. Stamps newer than all cached ones are queried once."""
        with self._lock:
            newest = self._newest.get(kind)
            own: Mapping[int, int] = self._written.get(kind, {})
            result = {stamp: own[stamp] for stamp in range(first, first + _SPARE) if stamp in own}
        if newest is None or first <= newest:
            markers = self._markers(kind, first, first + _SPARE - 1)
            instants = np.rint(markers.values).astype(np.int64)
            result = {**dict(zip(markers.stamps.tolist(), instants.tolist(), strict=True)), **result}
        return result

    def note(self, kind: EntityKind, written: Iterable[tuple[int, int]]) -> None:
        """Adds cycles that count from now on: pairs of stamp and timestamp."""
        with self._lock:
            own = self._written.setdefault(kind, OrderedDict())
            own.update(written)
            self._newest[kind] = max(self._newest.get(kind, 0), *own)
            while len(own) > _REMEMBERED:
                own.popitem(last=False)

    def between(self, kind: EntityKind, start: int, end: int) -> MarkedCycle:
        """The cycles with a timestamp in [start, end), in microseconds. Raises StoreUnavailableError or StoreError."""
        markers = self._markers(kind, start // 1000, end // 1000 + _SPARE)
        instants = np.rint(markers.values).astype(np.int64)
        order = np.lexsort((markers.stamps, instants))
        stamps, instants = markers.stamps[order], instants[order]
        last = np.append(np.diff(instants) > 0, True)[: instants.size]
        kept = last & (instants >= start) & (instants < end)
        return MarkedCycle(stamps[kept], instants[kept])

    def _markers(self, kind: EntityKind, first: int, last: int) -> Matrix:
        return matrix(self._server.query("query", self.selector(kind).raw(first, last)))

    def count(self, kind: EntityKind, start: int, end: int) -> Count:
        """Number of cycles of a span (microseconds), or slightly more. Raises StoreUnavailableError or StoreError."""
        query = self.selector(kind).folded_once("count_over_time", start // 1000, end // 1000 + _SPARE)
        match = {
            labels.get("write", FIRST): int(value) for labels, value in numbers(self._server.query("query", query))
        }
        return Count(match.get(FIRST, 0), match.get(AGAIN, 0))

    def newest(self, kind: EntityKind, now: float) -> int | None:
        """The newest timestamp in microseconds; None if there is none. ``now`` in unix seconds."""
        for span in _LOOK_BACKS:
            query = f"max(max_over_time({self.selector(kind).text}[{span}]))"
            fields = {"query": query, "time": f"{now + _AHEAD:.3f}"}
            for _, value in numbers(self._server.query("query", fields)):
                return round(value)
        return None

    def labels(self, kind: EntityKind, write: str) -> bytes:
        """The labels of a kind's marker series."""
        own = (("__name__", CYCLE_METRIC), ("kind", kind.value), (OWNER, self._server.remote.owner), ("write", write))
        return single(own)
