"""Write docs/reference/files.md from the first docstring line of every module; --check compares."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

from generated import write_or_check

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "files.md"
HEAD = """# Files

What each file is for. Written by `scripts/file_reference.py` from the first line of each docstring.
"""


def folders() -> list[str]:
    """The packages of the wheel, then the folders beside them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return [*packages, "sdk", "benchmarks", "scripts"]


def purpose(path: Path) -> str:
    """The first line of a module's docstring. Raises SystemExit when it has none."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise SystemExit(f"{path.relative_to(ROOT)} has no docstring: its first line says what the file is for")
    return text.partition("\n")[0].replace("|", "\\|").replace("<", "&lt;")


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for folder in folders():
        rows = [
            f"| `{path.relative_to(ROOT)}` | {purpose(path)} |"
            for path in sorted((ROOT / folder).rglob("*.py"))
            if "versions" not in path.parts
        ]
        parts.append("\n".join([f"## {folder}", "", "| file | purpose |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
