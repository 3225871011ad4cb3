"""Each package states in at most three lines its contents and what it must not do or import."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES_AT_MOST = 3
PROHIBITION = re.compile(r"\b(?:must not|no|not|only|never|nothing|pure)\b", re.IGNORECASE)
FOLDERS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["root_packages"]
PACKAGES = sorted(file.relative_to(ROOT).parent for folder in FOLDERS for file in (ROOT / folder).rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=str)
def test_the_docstring_of_a_package_is_short_and_states_a_prohibition(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert 0 < len(docstring.splitlines()) <= LINES_AT_MOST
    assert PROHIBITION.search(docstring)
