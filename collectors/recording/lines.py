"""The lines of a file, packed or not, of which any number can be read at the same time.

A recording of a large fleet has more files than a process may have open: a file is opened for each piece and
closed again. Of each one that is being read a few pieces are held, whatever its size.
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterator
from pathlib import Path

from outrider.errors import UsageError

MOST_LINE_BYTES = 512 * 1024 * 1024
# What reading a line raises when it is not what it should be: no UTF-8, no JSON, nested without end, keys that are
# missing, of another kind or out of range.
NOT_AS_EXPECTED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
_PIECE_BYTES = 16 * 1024
_UNPACKED_BYTES = 64 * 1024
_GZIP = zlib.MAX_WBITS | 16  # with the header and the checksum of gzip


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1, unpacked when the name ends in ``.gz``.

    Raises UsageError naming the file, and the line where there is one.
    """
    number = 0
    try:
        for number, line in enumerate(_split(_unpacked(path) if path.suffix == ".gz" else _pieces(path)), start=1):
            if line.strip():
                yield number, line
    except FileNotFoundError as error:
        raise UsageError(f"there is no recording {path}", hint="check the path") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=_mend(error)) from error
    except (EOFError, ValueError, zlib.error) as error:
        raise UsageError(
            f"{path}:{number + 1}: the recording breaks off: {error}", hint="record again, or cut the file there"
        ) from error


def describe_error(error: Exception) -> str:
    """One of ``NOT_AS_EXPECTED`` in words."""
    if isinstance(error, KeyError):
        return f"the key {error} is missing"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} is no UTF-8"
    if isinstance(error, OverflowError):
        return "a number is out of range"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _mend(error: OSError) -> str:
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return "the recording is whole: raise the limit of open files (ulimit -n) and try again"
    return "look at the file's permissions and at its disk"


def _pieces(path: Path) -> Iterator[bytes]:
    place = 0
    while True:
        with path.open("rb", buffering=0) as file:
            file.seek(place)
            piece = file.read(_PIECE_BYTES)
        if not piece:
            return
        place += len(piece)
        yield piece


def _unpacked(path: Path) -> Iterator[bytes]:
    """What was packed, member after member. Raises EOFError when the last one is not whole."""
    member = None
    for piece in _pieces(path):
        rest = piece
        while rest:
            if member is None:
                rest = rest.lstrip(b"\0")  # some pad the end with these
                if not rest:
                    break
                member = zlib.decompressobj(_GZIP)
            yield member.decompress(rest, _UNPACKED_BYTES)
            rest = member.unused_data if member.eof else member.unconsumed_tail
            if member.eof:
                member = None
        while member is not None and (more := member.decompress(b"", _UNPACKED_BYTES)):
            yield more  # a little in can be much out
        if member is not None and member.eof:
            member = None
    if member is not None:
        raise EOFError("the end of the packed file is missing")


def _split(pieces: Iterator[bytes]) -> Iterator[bytes]:
    begun: list[bytes] = []
    size = 0
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for part in whole:
            yield b"".join((*begun, part))
            begun, size = [], 0
        if rest:
            begun.append(rest)
            size += len(rest)
        if size > MOST_LINE_BYTES:
            raise ValueError(f"a line of more than {MOST_LINE_BYTES >> 20} MiB")
    if begun:
        yield b"".join(begun)
