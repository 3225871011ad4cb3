"""The map for people names modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/explanation/architecture.md", "CONTRIBUTING.md", "README.md")
_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
_PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]*(?:\.[a-z]+)?)`")
STEPS_AT_MOST = 12
README_LINES_AT_MOST = 150


@pytest.mark.parametrize("page", PAGES)
def test_linked_and_named_files_exist(page: str) -> None:
    file = ROOT / page
    text = file.read_text(encoding="utf-8")
    links = {target: (file.parent / target).exists() for target in _LINK.findall(text)}
    top = {path.name for path in ROOT.iterdir() if path.is_dir()}
    names = {name: (ROOT / name).exists() for name in _PATH.findall(text) if name.split("/")[0] in top}
    missing = [name for name, exists in (links | names).items() if not exists]
    assert links or names
    assert not missing


def test_the_walk_from_page_to_pager_has_at_most_twelve_steps() -> None:
    text = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    steps = [int(number) for number in re.findall(r"^\| (\d+)\. ", text, re.MULTILINE)]
    assert steps == list(range(1, len(steps) + 1))
    assert 0 < len(steps) <= STEPS_AT_MOST


def test_the_readme_fits_its_limit() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES_AT_MOST
