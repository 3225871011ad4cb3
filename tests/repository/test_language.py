"""Names and texts use the words of docs/reference/glossary.md and none of its banned words."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
FOLDERS = (
    "alerts", "benchmarks", "collectors", "dashboards", "deploy", "detectors", "docs", "outrider", "planner",
    "remediation", "reports", "scripts", "sdk", "service", "simulator", "store", "tests", ".",
)  # fmt: skip
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".j2", ".css", ".js", ".html", ".sql", ".sh", ".txt"}
# The glossary names the words; the others hold the output of other programs.
EXEMPT = ("docs/reference/glossary.md", "docs/_build/", "tests/recordings/", "tests/repository/test_language.py")
PLURALS = ("s", "d")
# Spellings that are stored or contractual, or belong to a library: keys of JSON and tables, ids of texts and arrays.
PERSISTED = re.compile(
    r"""beyond_promise|(?:section|table|empty)_promise|receive_door|not_told_apart|not_asked|looks_like|LOOKS_LIKE
    |off_told|told_at|paper_bgcolor|looks\ like
    |["']+(?:said|told|asked|door|paper|promise|lately)["']+   # a whole key
    |(?<=\{)(?:asked|door)(?=[}=])|(?<=<)asked(?=>)|\basked(?==[^=])|\[unallocated,\ asked\]
    |\brow\.door\b|(?<=or\ )paper\b|`door`""",
    re.VERBOSE,
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@cache
def banned_words() -> frozenset[str]:
    """The first column of the table "Banned words", with plurals. ``page`` has permitted uses: readers judge it."""
    table = GLOSSARY.read_text(encoding="utf-8").partition("## Banned words")[2]
    words = {row.split("|")[1].strip() for row in table.splitlines() if row.startswith("| ")} - {"word", "page"}
    return frozenset(words | {word + ending for word in words for ending in PLURALS})


def banned_in(text: str) -> Iterator[tuple[int, str]]:
    """Line number and word of each banned word, also inside a name such as ``told_twice`` or ``ToldTwice``."""
    for number, line in enumerate(text.splitlines(), start=1):
        for word in _WORD.findall(PERSISTED.sub("", line)):
            if word.lower() in banned_words():
                yield number, word


def tracked_files(folder: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    names = (name for name in listed if name and not name.startswith(EXEMPT))
    files = (ROOT / name for name in names if folder != "." or "/" not in name)
    return [file for file in files if file.suffix in SUFFIXES and file.is_file()]


def test_the_glossary_lists_banned_words() -> None:
    assert {"door", "doors", "told", "attic", "promise", "promised", "looks"} <= banned_words()


def test_banned_words_are_found_in_names_and_sentences() -> None:
    assert list(banned_in("class ToldTwice:\n    the_doors = 1")) == [(1, "Told"), (2, "doors")]
    assert list(banned_in("It looks fine.")) == [(1, "looks")]
    assert not list(banned_in("an outlook, a rollout, indoors; page: a dashboard page"))


def test_persisted_spellings_are_allowed() -> None:
    assert not list(banned_in('row["said"], impact["beyond_promise"], "{asked} probes"'))
    assert list(banned_in("said = row")) == [(1, "said")]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_banned_word_is_used(folder: str) -> None:
    files = tracked_files(folder)
    assert files
    uses = [
        f"{file.relative_to(ROOT)}:{number}: {word}"
        for file in files
        for number, word in banned_in(file.read_text(encoding="utf-8"))
    ]
    assert not uses, "\n".join(uses)


def test_no_file_name_has_a_banned_word() -> None:
    names = [str(file.relative_to(ROOT)) for folder in FOLDERS for file in tracked_files(folder)]
    assert len(names) > 1000
    assert not [name for name in names if list(banned_in(name))]
