"""Rules about the repository itself."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

from benchmarks import run
from outrider import model
from outrider.model import SignalKind
from outrider.vocabulary import catalog, faults

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
LONGEST_FILE = 600
PLACEHOLDER = re.compile(r"{(\w+)[^}]*}")
UNITS_IN_NAMES = {
    "seconds": "_seconds",
    "ratio": "_ratio",
    "bytes": "_bytes",
    "celsius": "_celsius",
    "watts": "_watts",
    "hertz": "_hertz",
    "per_second": "_per_second",
    "bytes_per_second": "_bytes_per_second",
    "tokens_per_second": "_tokens_per_second",
}


@cache
def tracked(suffix: str) -> tuple[Path, ...]:
    """Files that git knows or would add, with this suffix."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return tuple(ROOT / name for name in names if name.endswith(suffix) and (ROOT / name).is_file())


def test_no_file_is_long() -> None:
    tests = ROOT / "tests"
    sources = [path for path in tracked(".py") if tests not in path.parents]
    lengths = {path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in sources}
    assert [str(path) for path, lines in lengths.items() if lines > LONGEST_FILE] == []


def test_the_shared_types_are_imported_from_one_place() -> None:
    """Each of them under ``outrider.model``, which is what the files of the package are not."""
    inner = re.compile(r"(?:from|import) outrider\.model\.\w")
    own = ROOT / "outrider" / "model"
    found = [
        path for path in tracked(".py") if own not in path.parents and inner.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []
    defined = {
        node.name
        for path in own.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }
    assert defined <= set(model.__all__)


def test_links_have_a_text_wherever_they_are_read() -> None:
    """Sphinx fills in an empty text and a role; whoever reads the page in the repository sees a hole."""
    holes = re.compile(r"(?<!`)\[\]\([^)]+\)|\{(?:doc|ref)\}`")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked(".md")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if holes.search(line)
    ]
    assert found == []


def test_no_work_is_left_in_comments() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in {*tracked(".py"), *tracked(".yaml")} - {Path(__file__)}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if words.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("suffix", [".md", ".py", ".yaml", ".yml", ".toml"])
def test_no_merge_was_left_half_done(suffix: str) -> None:
    marks = re.compile(r"^(<{7} |>{7} |={7}$)", re.MULTILINE)
    held = [path for path in tracked(suffix) if marks.search(path.read_text(encoding="utf-8"))]
    assert [str(path.relative_to(ROOT)) for path in held] == []


def test_the_packages_of_the_wheel_are_the_folders_on_disk() -> None:
    on_disk = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert on_disk == set(PACKAGES)
    assert PROJECT["tool"]["mypy"]["packages"] == PACKAGES
    assert PROJECT["tool"]["importlinter"]["root_packages"] == PACKAGES


def test_no_file_of_the_dashboard_bears_the_name_of_a_package() -> None:
    names = {path.stem for path in (ROOT / "dashboards").iterdir()}
    assert not names & set(PACKAGES)


def test_every_package_says_what_lives_in_it() -> None:
    for package in PACKAGES:
        text = (ROOT / package / "__init__.py").read_text(encoding="utf-8")
        assert text.startswith('"""'), package
        assert len(text.splitlines()) >= 4, f"{package}: what lives here, what must not, who calls it?"


# --- texts ----------------------------------------------------------------------------------------


def texts(language: str) -> dict[str, str]:
    """Every text of a language by area and key."""
    found: dict[str, str] = {}

    def walk(prefix: str, node: object) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                walk(f"{prefix}.{key}", value)
        else:
            found[prefix] = str(node)

    for path in sorted((ROOT / "outrider" / "i18n" / language).glob("*.yaml")):
        walk(path.stem, yaml.safe_load(path.read_text(encoding="utf-8")))
    return found


def test_both_languages_have_the_same_texts_with_the_same_placeholders() -> None:
    english, chinese = texts("en"), texts("zh")
    assert set(english) == set(chinese)
    differing = [
        key for key in english if set(PLACEHOLDER.findall(english[key])) != set(PLACEHOLDER.findall(chinese[key]))
    ]
    assert differing == []


def test_nothing_sends_people_to_a_registry_that_has_no_such_package() -> None:
    tracked = subprocess.run(("git", "ls-files"), cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    named = [
        name
        for name in tracked
        if name.endswith((".py", ".md", ".yaml", ".toml", "Makefile")) and not name.startswith("tests/")
        if "outrider[" in (ROOT / name).read_text(encoding="utf-8")
    ]
    assert named == []


# --- vocabularies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("signal", catalog.signals().values(), ids=lambda signal: signal.name)
def test_a_signal_says_what_it_is(signal: catalog.Signal) -> None:
    assert signal.unit
    assert signal.means
    assert re.fullmatch(r"[a-z][a-z0-9_]*", signal.name)
    assert bool(signal.bounds) == (signal.kind is SignalKind.HISTOGRAM)
    assert list(signal.bounds) == sorted(set(signal.bounds))
    ending = UNITS_IN_NAMES.get(signal.unit)
    if ending and signal.kind is not SignalKind.DELTA:
        assert signal.name.endswith((ending, f"{ending}_total")), f"unit {signal.unit}"


def test_a_delta_is_named_as_the_counter_it_comes_of() -> None:
    deltas = [signal.name for signal in catalog.signals().values() if signal.kind is SignalKind.DELTA]
    assert [name for name in deltas if not name.endswith("_total")] == []


def test_a_fault_is_confused_with_faults_that_there_are() -> None:
    known = faults.faults()
    harmless = yaml.safe_load((ROOT / "outrider" / "vocabulary" / "faults.yaml").read_text(encoding="utf-8"))[
        "never_a_fault"
    ]
    confused = {name for fault in known.values() for name in fault.confusable}
    assert confused <= set(known) | set(harmless)


def test_every_benchmark_can_be_imported() -> None:
    names = run.BENCHMARKS.values()
    assert all(callable(importlib.import_module(name).run) for name in names)
