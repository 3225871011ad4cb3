"""Targets from lists: of the configuration, of files, of an HTTP server, of DNS."""

from __future__ import annotations

import asyncio
import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from collectors.discovery.target_groups import read_groups
from collectors.discovery.types import DiscoveredTarget, DiscoverySnapshot
from collectors.net.dns_client import NameServer, lookup
from collectors.net.http import HttpClient
from outrider.errors import CollectError, CollectReason, ConfigError

MOST_FILE_BYTES = 64 * 1024 * 1024


class StaticSource:
    """Addresses of the configuration itself."""

    def __init__(self, name: str, addresses: Sequence[str], labels: Mapping[str, str]) -> None:
        """All of them have the same labels."""
        self.name, self.every = name, timedelta(days=1)
        self._seen = DiscoverySnapshot(tuple(DiscoveredTarget(address, labels) for address in addresses))

    async def read(self) -> DiscoverySnapshot:
        """Always the same."""
        return self._seen

    async def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class _File:
    """What a file last said; ``stamp`` is its time and size then."""

    stamp: tuple[int, int]
    found: tuple[DiscoveredTarget, ...]
    faults: tuple[CollectError, ...]
    read: bool = True


class FileSource:
    """Files in the format of Prometheus' ``file_sd``, JSON or YAML, read anew when they change.

    A file that is broken stands as it last was good, and says so; one that is gone has no targets any more.
    """

    def __init__(self, name: str, patterns: Sequence[str], *, every: timedelta = timedelta(seconds=30)) -> None:
        """``patterns`` are paths, with ``*`` and ``?`` in them if need be."""
        self.name, self.every = name, every
        self._patterns = tuple(patterns)
        self._files: dict[str, _File] = {}
        self._seen = DiscoverySnapshot()

    async def read(self) -> DiscoverySnapshot:
        """Every target of every file. Raises CollectError when not one of them can be read."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> DiscoverySnapshot:
        paths = dict.fromkeys(path for pattern in self._patterns for path in _paths(pattern))
        files = {path: self._one(path) for path in paths}
        if files and not any(file.read for file in files.values()):
            self._files = files
            raise next(fault for file in files.values() for fault in file.faults)
        if files.keys() == self._files.keys() and all(files[path] is self._files[path] for path in files):
            return self._seen
        self._files = files
        found = tuple(one for file in files.values() for one in file.found)
        self._seen = DiscoverySnapshot(found, faults=tuple(fault for file in files.values() for fault in file.faults))
        return self._seen

    def _one(self, path: str) -> _File:
        before = self._files.get(path)
        try:
            stat = Path(path).stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if before is not None and before.stamp == stamp:
                return before
            if stat.st_size > MOST_FILE_BYTES:
                return _stays(before, stamp, f"{self.name}: {path} is larger than {MOST_FILE_BYTES} bytes")
            found, problems = read_groups(Path(path).read_text(encoding="utf-8"), path)
        except (OSError, UnicodeDecodeError) as error:
            return _stays(before, (0, 0), f"{self.name}: {path} cannot be read ({type(error).__name__})")
        except ConfigError as error:
            return _stays(before, stamp, f"{self.name}: {error.message}")
        faults = [CollectError(f"{self.name}: {problem}", reason=CollectReason.TRUNCATED) for problem in problems[:20]]
        return _File(stamp, tuple(found), tuple(faults))

    async def close(self) -> None:
        """Nothing is open."""


def _stays(before: _File | None, stamp: tuple[int, int], said: str) -> _File:
    said += "; its targets stay as they were" if before is not None and before.found else "; it has told no targets yet"
    fault = CollectError(said, reason=CollectReason.TRUNCATED, hint="mend the file; it is read again when it changes")
    if before is not None and before.stamp == stamp and before.faults and before.faults[0].message == fault.message:
        return before
    return _File(stamp, before.found if before else (), (fault,), read=False)


def _paths(pattern: str) -> list[str]:
    """The files of a pattern; a path without one stands for itself, so that its absence is told."""
    if not any(mark in pattern for mark in "*?["):
        return [pattern]
    return sorted(glob.glob(pattern))  # noqa: PTH207 - Path.glob takes no absolute patterns


class HttpSource:
    """A server that answers with target groups as JSON (Prometheus' ``http_sd``)."""

    def __init__(self, name: str, client: HttpClient, *, every: timedelta = timedelta(minutes=1)) -> None:
        """``client`` is this one's alone; its URL is the list itself."""
        self.name, self.every = name, every
        self._client = client
        self._last: tuple[bytes, DiscoverySnapshot] = (b"", DiscoverySnapshot())

    async def read(self) -> DiscoverySnapshot:
        """Ask once. Raises CollectError when there is no list, also for one that cannot be used at all."""
        answer = await self._client.ask("")
        url = self._client.url
        if answer.status != 200:
            raise self._client.fault(f"{url} answered {answer.status}", CollectReason.HTTP_STATUS, "look at its log")
        if answer.body == self._last[0]:
            return self._last[1]
        try:
            text = answer.body.decode("utf-8")
            found, problems = await asyncio.to_thread(read_groups, text, f"{url}#.json")
        except (UnicodeDecodeError, ConfigError) as error:
            said = f"{url} answered something that is no list of targets"
            raise self._client.fault(said, CollectReason.TRUNCATED, "check the url of the source") from error
        if problems and not found:
            raise self._client.fault(f"{url}: {problems[0].key}: {problems[0].message}", CollectReason.TRUNCATED)
        faults = [self._client.fault(f"{url}: {one.key}: {one.message}", CollectReason.TRUNCATED) for one in problems]
        self._last = answer.body, DiscoverySnapshot(tuple(found), faults=tuple(faults[:20]))
        return self._last[1]

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()


class DnsSource:
    """Names whose records are the targets: SRV records bring their ports, addresses take ``port``."""

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        *,
        record: str = "SRV",
        port: int | None = None,
        servers: Sequence[NameServer] = (),
        within: timedelta = timedelta(seconds=5),
        every: timedelta = timedelta(seconds=30),
    ) -> None:
        """``record`` is SRV, A or AAAA. ``servers`` are asked instead of the system's."""
        self.name, self.every = name, every
        self._names, self._record, self._port = tuple(names), record, port
        self._servers, self._within = tuple(servers), within
        self._last: dict[str, tuple[DiscoveredTarget, ...]] = {}
        self._seen = DiscoverySnapshot()

    async def read(self) -> DiscoverySnapshot:
        """Look every name up. Raises CollectError when none of them leads anywhere."""
        results = await asyncio.gather(*map(self._one, self._names), return_exceptions=True)
        faults: list[CollectError] = []
        for name, result in zip(self._names, results, strict=True):
            if isinstance(result, CollectError):
                faults.append(CollectError(f"{self.name}: {result.message}", reason=result.reason, hint=result.hint))
            elif isinstance(result, BaseException):
                raise result
            else:
                self._last[name] = result
        if len(faults) == len(self._names):
            raise faults[0]
        found = tuple(one for name in self._names for one in self._last.get(name, ()))
        if found != self._seen.found or faults or self._seen.faults:
            self._seen = DiscoverySnapshot(found, faults=tuple(faults))
        return self._seen

    async def _one(self, name: str) -> tuple[DiscoveredTarget, ...]:
        records = await lookup(name, self._record, within=self._within, servers=self._servers)
        labels = {"__meta_dns_name": name}
        return tuple(
            sorted(
                (DiscoveredTarget(_joined(one.value, one.port or self._port), labels) for one in records),
                key=lambda found: found.address,
            )
        )

    async def close(self) -> None:
        """Nothing is open."""


def _joined(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"
