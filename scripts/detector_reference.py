"""Write docs/reference/detectors.md from detectors/registry.py; with --check, say whether it is up to date."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from generated import write_or_check

from detectors.registry import DETECTORS
from outrider.ports import Detector
from outrider.units import format_duration

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "detectors.md"

HEAD = """\
# Detectors

Every detector that runs in each cycle, in the words of its own file: how it decides, and what it leaves to others.
A detector answers with findings or says why it has no verdict; rules make alerts of findings, and correlation makes
one incident of what belongs together. How the statistical ones are measured is told in
[how detection decides](../explanation/detection.md), the figures of the fault benchmark stand in
[its own page](drill-figures.md).

This page is written by `scripts/detector_reference.py`.

| detector | looks at | window | file |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    made = {name: make() for name, make in DETECTORS.items()}
    modules: dict[ModuleType, dict[str, Detector]] = {}
    rows = []
    for name, detector in made.items():
        module = inspect.getmodule(type(detector))
        assert module is not None
        modules.setdefault(module, {})[name] = detector
        window = format_duration(detector.window)
        rows.append(f"| `{name}` | {detector.kind.value} | {window} | `{_file(module)}` |\n")
    return HEAD + "".join(rows) + "".join(_section(module, found) for module, found in modules.items())


def _section(module: ModuleType, found: dict[str, Detector]) -> str:
    first, _, rest = inspect.cleandoc(module.__doc__ or "").partition("\n")
    names = ", ".join(f"`{name}`" for name in found)
    signals = dict.fromkeys(key.name for one in found.values() for key in one.keys)
    said = rest.strip().replace("``", "`")
    return "\n".join(
        (f"\n## {names}\n", first.replace("``", "`"), *((f"\n{said}",) if said else ()), f"\nReads {_told(signals)}.\n")
    )


def _told(signals: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(signals)) or "events alone"


def _file(module: ModuleType) -> str:
    return module.__name__.replace(".", "/") + ".py"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
