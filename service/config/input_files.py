"""Reads and writes the files of commands. Errors are one sentence each."""

from __future__ import annotations

from pathlib import Path

from outrider.errors import UsageError


def text_of(path: Path, hint: str) -> str:
    """Text of a file. Raises UsageError with ``hint`` if it does not exist."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} cannot be read: it is not valid UTF-8 text", hint=hint) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=hint) from error


def write(path: Path, text: str) -> None:
    """Writes a file and its parent folders. Raises UsageError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="choose another path") from error
