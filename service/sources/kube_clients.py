"""Clients of the Kubernetes API servers of a configuration. Sources with one server and account share its lists."""

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
    """Returns the client of each API server. Readers of one server share watches and the longest of their timeouts."""

    def __init__(self, readers: Iterable[_Reader]) -> None:
        """``readers`` are settings of target and event sources, including those that read no API server."""
        self._readers = [reader for reader in readers if reader.type in _TYPES]
        self._shared: list[tuple[_Reader, SharedWatches]] = []

    def of(self, options: _Reader, name: str) -> KubeApi | SharedWatches:
        """Returns shared watches if several sources read the server, else a client. ``name`` is named in errors."""
        readers = [reader for reader in self._readers if _is_same(reader, options)]
        timeout = max((options.timeout, *(reader.timeout for reader in readers)))
        shared = next((watches for reader, watches in self._shared if _is_same(reader, options)), None)
        if shared is not None:
            return shared
        api = KubeApi(HttpClient(name, options.url or "", timeout=timeout, access=options.access))
        if len(readers) < 2:
            return api
        self._shared.append((options, SharedWatches(api)))
        return self._shared[-1][1]


def _is_same(reader: _Reader, other: _Reader) -> bool:
    return (reader.url or "").rstrip("/") == (other.url or "").rstrip("/") and reader.access == other.access
