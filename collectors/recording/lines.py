"""Lines of plain or gzipped files; any number of files can be read at the same time.

A recording of a large fleet has more files than a process may open. A file is opened for each chunk and closed
again. Only a few chunks of each file are in memory, whatever its size.
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterator
from pathlib import Path

from outrider.errors import UsageError

MOST_LINE_BYTES = 512 * 1024 * 1024
# Errors raised by parsing an invalid line: not UTF-8, not JSON, nested too deeply, keys missing, of another type
# or out of range.
NOT_AS_EXPECTED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
_PIECE_BYTES = 16 * 1024
_UNPACKED_BYTES = 64 * 1024
_GZIP = zlib.MAX_WBITS | 16  # with gzip header and checksum


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the non-blank lines with their numbers from 1, decompressed if the name ends in ``.gz``.

    Raises UsageError naming the file, and the line if there is one.
    """
    number = 0
    try:
        for number, line in enumerate(_split(_unpacked(path) if path.suffix == ".gz" else _chunks(path)), start=1):
            if line.strip():
                yield number, line
    except FileNotFoundError as error:
        raise UsageError(f"recording {path} does not exist", hint="check the path") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=_hint(error)) from error
    except (EOFError, ValueError, zlib.error) as error:
        raise UsageError(
            f"{path}:{number + 1}: the recording is truncated: {error}",
            hint="record again, or cut the file at this line",
        ) from error


def describe_error(error: Exception) -> str:
    """Describes one of ``NOT_AS_EXPECTED``."""
    if isinstance(error, KeyError):
        return f"the key {error} is missing"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} is not UTF-8"
    if isinstance(error, OverflowError):
        return "a number is out of range"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _hint(error: OSError) -> str:
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return "the recording is intact: increase the limit of open files (ulimit -n) and try again"
    return "check the file's permissions and its disk"


def _chunks(path: Path) -> Iterator[bytes]:
    position = 0
    while True:
        with path.open("rb", buffering=0) as file:
            file.seek(position)
            piece = file.read(_PIECE_BYTES)
        if not piece:
            return
        position += len(piece)
        yield piece


def _unpacked(path: Path) -> Iterator[bytes]:
    """Decompressed data, member after member. Raises EOFError if the last one is incomplete."""
    member = None
    for piece in _chunks(path):
        rest = piece
        while rest:
            if member is None:
                rest = rest.lstrip(b"\0")  # some tools pad the end with zeros
                if not rest:
                    break
                member = zlib.decompressobj(_GZIP)
            yield member.decompress(rest, _UNPACKED_BYTES)
            rest = member.unused_data if member.eof else member.unconsumed_tail
            if member.eof:
                member = None
        while member is not None and (more := member.decompress(b"", _UNPACKED_BYTES)):
            yield more  # a small input can expand to much output
        if member is not None and member.eof:
            member = None
    if member is not None:
        raise EOFError("the end of the compressed file is missing")


def _split(pieces: Iterator[bytes]) -> Iterator[bytes]:
    started: list[bytes] = []
    size = 0
    for piece in pieces:
        *complete, rest = piece.split(b"\n")
        for part in complete:
            yield b"".join((*started, part))
            started, size = [], 0
        if rest:
            started.append(rest)
            size += len(rest)
        if size > MOST_LINE_BYTES:
            raise ValueError(f"a line of more than {MOST_LINE_BYTES >> 20} MiB")
    if started:
        yield b"".join(started)
