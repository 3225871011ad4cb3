"""Backup file: a tar (optionally zstd) with a manifest, followed by two SQLite files that must match it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

import zstandard

from outrider.errors import UsageError
from store.schema.metadata import Database

FORMAT: Final = 1
MEMBERS: Final[dict[Database, str]] = {"state": "state.db", "metrics": "metrics.db"}
_MANIFEST: Final = "manifest.json"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_PIECE = 1 << 20
_FLUSHED_BYTES = 16 << 20
_MOST_MANIFEST_BYTES = 1 << 20

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a backup."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a backup. ``engine`` is the source, ``sqlite`` or ``postgresql``."""

    program: str
    engine: str
    made_at: datetime
    revisions: Mapping[Database, str]
    members: Mapping[str, Member]

    @property
    def bytes(self) -> int:
        """Total size of the unpacked files in bytes."""
        return sum(member.bytes for member in self.members.values())


def member_of(path: Path) -> Member:
    """Size and digest of a file."""
    with path.open("rb") as file:
        return Member(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def pack(file: IO[bytes], manifest: Manifest, folder: Path, progress: Progress, *, packed: bool) -> None:
    """Writes the manifest and its members from ``folder``. Raises OSError."""
    plain = {**asdict(manifest), "format": FORMAT, "made_at": manifest.made_at.isoformat()}
    text = json.dumps(plain, indent=2).encode()
    done = 0
    with _packing(file, packed=packed) as out, tarfile.open(fileobj=out, mode="w|") as tar:
        head = tarfile.TarInfo(_MANIFEST)
        head.size, head.mtime = len(text), int(manifest.made_at.timestamp())
        tar.addfile(head, io.BytesIO(text))
        for name, member in manifest.members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = member.bytes, head.mtime, 0o600
            with (folder / name).open("rb") as source:
                tar.addfile(info, _CountingReader(source, progress, done, manifest.bytes))
            done += member.bytes


@contextmanager
def _packing(file: IO[bytes], *, packed: bool) -> Iterator[IO[bytes]]:
    steady: Any = _Steady(file)
    if not packed:
        yield steady
        return
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    with compressor.stream_writer(steady, closefd=False) as out:
        yield out


class _Steady(io.RawIOBase):
    """A file that is flushed while it grows: one flush of gigabytes at the end would stall the writes of the store."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._waiting = file, 0

    def write(self, piece: Any) -> int:
        self._waiting += len(piece)
        if self._waiting >= _FLUSHED_BYTES:
            self._file.flush()
            os.fdatasync(self._file.fileno())
            self._waiting = 0
        return self._file.write(piece)


class _CountingReader(io.RawIOBase):
    """A file that reports the share read so far."""

    def __init__(self, source: IO[bytes], progress: Progress, done: int, total: int) -> None:
        self._source, self._progress, self._done, self._total = source, progress, done, total

    def read(self, size: int = -1) -> bytes:
        piece = self._source.read(size)
        self._done += len(piece)
        self._progress(self._done / self._total)
        return piece


def manifest_of(path: Path) -> Manifest:
    """The manifest of a backup, read before anything else. Raises UsageError."""
    with _reading(path) as tar:
        return _manifest(tar, path)


def unpack(path: Path, folder: Path, progress: Progress) -> Manifest:
    """Extracts the members into ``folder`` and compares their digests. Raises UsageError on any mismatch, OSError."""
    with _reading(path) as tar:
        manifest = _manifest(tar, path)
        waiting, done = dict(manifest.members), 0
        while (info := tar.next()) is not None:
            source = tar.extractfile(info)
            if source is None or info.name not in waiting:
                raise _broken(path, f"it holds {info.name!r}, which the manifest does not list")
            member = waiting.pop(info.name)
            digest = hashlib.sha256()
            with (folder / info.name).open("wb") as target:
                while piece := source.read(_PIECE):
                    digest.update(piece)
                    target.write(piece)
                    done += len(piece)
                    progress(min(done / manifest.bytes, 1.0))
            if digest.hexdigest() != member.sha256:
                raise _broken(path, f"{info.name} does not match the manifest (sha256)")
    if waiting:
        raise _broken(path, f"{next(iter(waiting))} is missing")
    return manifest


@contextmanager
def _reading(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with path.open("rb") as file:
            packed = file.read(4) == _ZSTD_MAGIC
            file.seek(0)
            source: Any = zstandard.ZstdDecompressor().stream_reader(file, closefd=False) if packed else file
            try:
                with tarfile.open(fileobj=source, mode="r|") as tar:
                    yield tar
            except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
                raise _broken(path, str(error) or "it is truncated") from error
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.", hint="Name a file that `outrider db backup` wrote."
        ) from error


def _manifest(tar: tarfile.TarFile, path: Path) -> Manifest:
    first = tar.next()
    source = tar.extractfile(first) if first is not None and first.name == _MANIFEST else None
    if source is None:
        raise _broken(path, "it does not begin with a manifest")
    try:
        plain = json.loads(source.read(_MOST_MANIFEST_BYTES))
        version = plain.pop("format")
        if version != FORMAT:
            raise UsageError(
                f"{path} has an unknown backup format ({version}; this version reads {FORMAT}).",
                hint="Restore it with the outrider version that wrote it, or a newer one.",
            )
        members = {name: Member(**member) for name, member in plain.pop("members").items()}
        made_at = datetime.fromisoformat(plain.pop("made_at"))
        manifest = Manifest(**plain, made_at=made_at, members=members)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _broken(path, f"its manifest cannot be read ({error})") from error
    if set(members) != set(MEMBERS.values()) or set(manifest.revisions) != set(MEMBERS):
        raise _broken(path, "its manifest lists other files")
    return manifest


def _broken(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"{path} is not a complete outrider backup: {reason}.",
        hint="Use another backup; the store was not changed.",
    )
