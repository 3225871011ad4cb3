"""Target sources: static lists, files, HTTP servers and DNS."""

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
    """Addresses from the configuration."""

    def __init__(self, name: str, addresses: Sequence[str], labels: Mapping[str, str]) -> None:
        """All addresses have the same labels."""
        self.name, self.every = name, timedelta(days=1)
        self._snapshot = DiscoverySnapshot(tuple(DiscoveredTarget(address, labels) for address in addresses))

    async def read(self) -> DiscoverySnapshot:
        """Returns the configured targets."""
        return self._snapshot

    async def close(self) -> None:
        """Does nothing: no resource is open."""


@dataclass(frozen=True, slots=True)
class _File:
    """Last content of a file; ``stamp`` is its modification time and size."""

    stamp: tuple[int, int]
    targets: tuple[DiscoveredTarget, ...]
    faults: tuple[CollectError, ...]
    read: bool = True


class FileSource:
    """Files in the format of Prometheus' ``file_sd``, JSON or YAML, read again when they change.

    A broken file keeps its last valid targets and is reported; a removed file has no targets.
    """

    def __init__(self, name: str, patterns: Sequence[str], *, every: timedelta = timedelta(seconds=30)) -> None:
        """``patterns`` are paths, optionally with ``*`` and ``?``."""
        self.name, self.every = name, every
        self._patterns = tuple(patterns)
        self._files: dict[str, _File] = {}
        self._snapshot = DiscoverySnapshot()

    async def read(self) -> DiscoverySnapshot:
        """Targets of all files. Raises CollectError if none of the files can be read."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> DiscoverySnapshot:
        paths = dict.fromkeys(path for pattern in self._patterns for path in _paths(pattern))
        files = {path: self._read_file(path) for path in paths}
        if files and not any(file.read for file in files.values()):
            self._files = files
            raise next(fault for file in files.values() for fault in file.faults)
        if files.keys() == self._files.keys() and all(files[path] is self._files[path] for path in files):
            return self._snapshot
        self._files = files
        targets = tuple(item for file in files.values() for item in file.targets)
        self._snapshot = DiscoverySnapshot(
            targets, faults=tuple(fault for file in files.values() for fault in file.faults)
        )
        return self._snapshot

    def _read_file(self, path: str) -> _File:
        before = self._files.get(path)
        try:
            stat = Path(path).stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if before is not None and before.stamp == stamp:
                return before
            if stat.st_size > MOST_FILE_BYTES:
                return _keep_last(before, stamp, f"{self.name}: {path} exceeds {MOST_FILE_BYTES} bytes")
            targets, problems = read_groups(Path(path).read_text(encoding="utf-8"), path)
        except (OSError, UnicodeDecodeError) as error:
            return _keep_last(before, (0, 0), f"{self.name}: {path} cannot be read ({type(error).__name__})")
        except ConfigError as error:
            return _keep_last(before, stamp, f"{self.name}: {error.message}")
        faults = [CollectError(f"{self.name}: {problem}", reason=CollectReason.TRUNCATED) for problem in problems[:20]]
        return _File(stamp, tuple(targets), tuple(faults))

    async def close(self) -> None:
        """Does nothing: no resource is open."""


def _keep_last(before: _File | None, stamp: tuple[int, int], message: str) -> _File:
    message += "; keeping its last targets" if before is not None and before.targets else "; it has had no targets yet"
    fault = CollectError(message, reason=CollectReason.TRUNCATED, hint="fix the file; it is read again on change")
    if before is not None and before.stamp == stamp and before.faults and before.faults[0].message == fault.message:
        return before
    return _File(stamp, before.targets if before else (), (fault,), read=False)


def _paths(pattern: str) -> list[str]:
    """Files of a pattern; a plain path stands for itself, so that its absence is reported."""
    if not any(mark in pattern for mark in "*?["):
        return [pattern]
    return sorted(glob.glob(pattern))  # noqa: PTH207 - Path.glob does not support absolute patterns


class HttpSource:
    """A server that returns target groups as JSON (Prometheus' ``http_sd``)."""

    def __init__(self, name: str, client: HttpClient, *, every: timedelta = timedelta(minutes=1)) -> None:
        """``client`` belongs to this source alone; its URL is the list itself."""
        self.name, self.every = name, every
        self._client = client
        self._last: tuple[bytes, DiscoverySnapshot] = (b"", DiscoverySnapshot())

    async def read(self) -> DiscoverySnapshot:
        """Requests the list. Raises CollectError without a response, and for an unusable list."""
        answer = await self._client.get("")
        url = self._client.url
        if answer.status != 200:
            raise self._client.fault(f"{url} returned {answer.status}", CollectReason.HTTP_STATUS, "check its log")
        if answer.body == self._last[0]:
            return self._last[1]
        try:
            text = answer.body.decode("utf-8")
            targets, problems = await asyncio.to_thread(read_groups, text, f"{url}#.json")
        except (UnicodeDecodeError, ConfigError) as error:
            message = f"{url} returned a response that is not a list of targets"
            raise self._client.fault(message, CollectReason.TRUNCATED, "check the url of the source") from error
        if problems and not targets:
            raise self._client.fault(f"{url}: {problems[0].key}: {problems[0].message}", CollectReason.TRUNCATED)
        faults = [
            self._client.fault(f"{url}: {problem.key}: {problem.message}", CollectReason.TRUNCATED)
            for problem in problems
        ]
        self._last = answer.body, DiscoverySnapshot(tuple(targets), faults=tuple(faults[:20]))
        return self._last[1]

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()


class DnsSource:
    """Names whose records are the targets: SRV records include ports, addresses use ``port``."""

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
        """``record`` is SRV, A or AAAA. ``servers`` replace the system's name servers."""
        self.name, self.every = name, every
        self._names, self._record, self._port = tuple(names), record, port
        self._servers, self._within = tuple(servers), within
        self._last: dict[str, tuple[DiscoveredTarget, ...]] = {}
        self._snapshot = DiscoverySnapshot()

    async def read(self) -> DiscoverySnapshot:
        """Resolves every name. Raises CollectError if none of them resolves."""
        results = await asyncio.gather(*map(self._resolve, self._names), return_exceptions=True)
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
        targets = tuple(target for name in self._names for target in self._last.get(name, ()))
        if targets != self._snapshot.targets or faults or self._snapshot.faults:
            self._snapshot = DiscoverySnapshot(targets, faults=tuple(faults))
        return self._snapshot

    async def _resolve(self, name: str) -> tuple[DiscoveredTarget, ...]:
        records = await lookup(name, self._record, within=self._within, servers=self._servers)
        labels = {"__meta_dns_name": name}
        return tuple(
            sorted(
                (DiscoveredTarget(_joined(record.value, record.port or self._port), labels) for record in records),
                key=lambda target: target.address,
            )
        )

    async def close(self) -> None:
        """Does nothing: no resource is open."""


def _joined(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"
