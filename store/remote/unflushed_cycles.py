"""Recently acknowledged cycles, kept until the server has flushed them to disk.

VictoriaMetrics acknowledges samples before they are on disk, and loses the last seconds if it is killed. The requests
of the last cycles are therefore kept. Before each new cycle the server is checked for their markers; if one is missing,
all of them are sent again, with the same samples at the same stamps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from outrider import log
from outrider.errors import StoreError
from outrider.model import EntityKind
from store.remote.api_responses import matrix
from store.remote.client import Server
from store.remote.names import CYCLE_METRIC, OWNER
from store.remote.selectors import Selector

_log = log.get("store")
_CYCLES = 4
_MOST_BYTES = 256 << 20
SEARCHABLE_AFTER: Final = 5.0
"""Seconds after which an acknowledged cycle must be visible."""


@dataclass(slots=True)
class UnflushedCycle:
    """One cycle: its requests with their numbers of samples, in sending order."""

    stamps: Sequence[tuple[EntityKind, int]]
    bodies: Sequence[tuple[bytes, int]]
    at: float = field(default_factory=time.monotonic)
    resent: bool = False


class UnflushedCycles:
    """The last cycles. Not thread-safe."""

    def __init__(self, server: Server) -> None:
        """Starts empty."""
        self._server = server
        self._sent: deque[UnflushedCycle] = deque(maxlen=_CYCLES)

    def keep(self, sent: UnflushedCycle) -> None:
        """Keeps a cycle that counts from now on."""
        self._sent.append(sent)
        while len(self._sent) > 1 and sum(len(body) for cycle in self._sent for body, _ in cycle.bodies) > _MOST_BYTES:
            self._sent.popleft()

    def resend_lost(self, deadline: float) -> None:
        """Sends lost cycles again, once. Raises StoreUnavailableError if they cannot be sent."""
        known = [cycle for cycle in self._sent if not cycle.resent and time.monotonic() - cycle.at >= SEARCHABLE_AFTER]
        if not known or not self._lost(known):
            return
        _log.warning("server_lost_cycles", sent_again=len(known), hint="the server was killed, or lost its disk")
        for cycle in known:
            for body, count in cycle.bodies:
                self._server.write(body, count, deadline)
            cycle.resent = True

    def _lost(self, known: Sequence[UnflushedCycle]) -> bool:
        """True if the server misses one of these cycles; False also if the query fails."""
        wanted = {(kind.value, stamp) for cycle in known for kind, stamp in cycle.stamps}
        stamps = [stamp for _, stamp in wanted]
        selector = Selector(CYCLE_METRIC).equal(OWNER, self._server.remote.owner)
        try:
            markers = matrix(self._server.query("query", selector.raw(min(stamps), max(stamps))))
        except StoreError:
            return False
        kinds = np.repeat([labels.get("kind", "") for labels in markers.labels], markers.counts).tolist()
        return not wanted <= set(zip(kinds, markers.stamps.tolist(), strict=True))
