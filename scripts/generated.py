"""Pages that are written from the code: a script writes its page, or with --check says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(page: Path, text: str) -> int:
    """The exit code of a script whose page should hold ``text``: 1 when --check finds another text there."""
    if "--check" not in sys.argv[1:]:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        return 0
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return 0
    print(f"{page.name} is out of date; run: python scripts/{Path(sys.argv[0]).name}", file=sys.stderr)
    return 1
