"""Reachability of a target before any page is written: connection status and duration."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simulator.fleet import Fleet

PATIENCE_SECONDS = 5.0  # default scrape timeout; slower pages never arrive
_TURN_SECONDS = 0.002  # round trip on a healthy network
_BYTES_PER_SECOND = 2.0e8
_SEGMENT_BYTES = 1448
_FIRST_RETRY_SECONDS, _RETRY_SECONDS = 1.0, 0.2  # Linux: a lost SYN is sent again after 1 s, anything else after 0.2 s
_MOST_RETRIES, _MOST_LOST_RATIO = 6, 0.95


class Status(StrEnum):
    """Result of an attempt to read a page."""

    OK = "ok"
    REFUSED = "refused"  # no listener
    TIMEOUT = "timeout"  # no complete response in time
    HTTP_503 = "http_503"


@dataclass(frozen=True, slots=True)
class Answer:
    """Response of a target. ``body`` is set only if ``status`` is ok. ``seconds`` is the duration.

    ``health`` is the HTTP status of ``GET /health``, None without a response or for a target that is not an engine;
    ``load`` the requests in flight by ``GET /load``, None if the engine does not report them.
    """

    status: Status
    body: bytes | None
    seconds: float
    health: int | None = None
    load: float | None = None


def host_status(fleet: Fleet, node: int | None) -> Status:
    """Returns the connection status of a node: timeout if the node, its network or its cluster is unreachable.

    ``node`` None stands for nodes outside the pools, such as those of the control plane.
    """
    effects = fleet.effects
    if effects.cluster.alive[0] < 0.5 or effects.cluster.seen[0] < 0.5:
        return Status.TIMEOUT
    if node is not None and (effects.nodes.alive[node] < 0.5 or effects.nodes.reachable[node] < 0.5):
        return Status.TIMEOUT
    return Status.OK


def transfer_seconds(size_bytes: int, loss_ratio: float = 0.0, key: str = "") -> float:
    """Returns the seconds to read a page over a network that loses ``loss_ratio`` of its packets.

    A slow-start sender doubles its window each round trip. A loss at its end waits for a timer that also doubles.
    ``key`` seeds the draw, so that the result for one page at one time is fixed.
    """
    seconds = _TURN_SECONDS + size_bytes / _BYTES_PER_SECOND
    if loss_ratio <= 0.0:
        return seconds
    turns = 2 + max(1, size_bytes // (10 * _SEGMENT_BYTES)).bit_length()
    draw = np.random.default_rng(zlib.crc32(key.encode()))
    lost = np.minimum(draw.geometric(1.0 - min(loss_ratio, _MOST_LOST_RATIO), turns) - 1, _MOST_RETRIES)
    waits = np.full(turns, _RETRY_SECONDS)
    waits[0] = _FIRST_RETRY_SECONDS
    return float(seconds + (waits * (2.0**lost - 1.0)).sum())
