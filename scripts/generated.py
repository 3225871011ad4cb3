"""Writes a generated page, or compares it with --check."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(page: Path, text: str) -> int:
    """Writes ``text`` to ``page``, or returns exit code 1 if --check finds a difference."""
    if "--check" not in sys.argv[1:]:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        return 0
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return 0
    print(f"{page.name} is out of date; run: python scripts/{Path(sys.argv[0]).name}", file=sys.stderr)
    return 1
