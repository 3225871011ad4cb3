"""The API servers of a configuration: whoever reads the same one with the same account shares its lists."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Protocol

from collectors.kubernetes.api import KubeApi
from collectors.kubernetes.watch import SharedWatches
from collectors.net.http import HttpClient
from outrider.wire.http_auth import Access

_TYPES = ("kubernetes", "engine_log")


class _Reader(Protocol):
    """Settings of a source that reads an API server."""

    @property
    def type(self) -> str: ...

    @property
    def url(self) -> str | None: ...

    @property
    def timeout(self) -> timedelta: ...

    @property
    def access(self) -> Access: ...


class KubeClientPool:
    """Hands out the doors of each server. Where several sources read one, the longest of their timeouts holds."""

    def __init__(self, readers: Iterable[_Reader]) -> None:
        """``readers`` are sources of targets and of events, those that read something else among them."""
        self._readers = [one for one in readers if one.type in _TYPES]
        self._made: list[tuple[_Reader, SharedWatches]] = []

    def of(self, given: _Reader, name: str) -> KubeApi | SharedWatches:
        """What a source reads: doors that others open too, or an API of its own. ``name`` is told with faults."""
        alike = [one for one in self._readers if _is_same(one, given)]
        timeout = max((given.timeout, *(one.timeout for one in alike)))
        known = next((doors for one, doors in self._made if _is_same(one, given)), None)
        if known is not None:
            return known
        api = KubeApi(HttpClient(name, given.url or "", timeout=timeout, access=given.access))
        if len(alike) < 2:
            return api
        self._made.append((given, SharedWatches(api)))
        return self._made[-1][1]


def _is_same(one: _Reader, other: _Reader) -> bool:
    return (one.url or "").rstrip("/") == (other.url or "").rstrip("/") and one.access == other.access
