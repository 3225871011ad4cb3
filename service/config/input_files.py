"""Files that a command is given: read and written, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

from outrider.errors import UsageError


def text_of(path: Path, hint: str) -> str:
    """The text of a file. Raises UsageError with ``hint`` where there is none."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} cannot be read: it is no UTF-8 text", hint=hint) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=hint) from error


def write(path: Path, text: str) -> None:
    """Write a file, and the folders it lies in. Raises UsageError where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="name another place") from error
