"""Write docs/reference/detectors.md from detectors/registry.py; with --check, say whether it is up to date."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

from generated import write_or_check

from detectors.load import expected_traffic, ingress_state
from detectors.registry import DETECTORS
from outrider.ports import Detector
from outrider.vocabulary.units import format_duration

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "detectors.md"

EXPLAINED = {
    **dict.fromkeys(
        (
            "liveness", "slowness", "engineerrors", "validity", "prefixcache", "enginelogs", "startups", "vanished",
            "batchlimit",
        ),
        "engines",
    ),
    **dict.fromkeys(
        ("saturation", "surge", "skew", "outcomes", "entry", "traffic", "kpi", "scaling", "outside"),
        "load",
    ),
    **dict.fromkeys(
        (
            "hardfaults", "nodefaults", "devicememory", "powercap", "powerdraw", "memoryuse", "targets", "hostfaults",
            "neighbours", "containerfaults", "podfaults",
        ),
        "hardware",
    ),
    **dict.fromkeys(("seasonal", "isolation", "robustz", "levelshift", "drift"), "statistics"),
}  # fmt: skip
"""Which page of docs/explanation/detection/ tells of a detector, by its file."""

SHARED = {"detectors.load.gateway": (ingress_state,), "detectors.load.forecast_deviation": (expected_traffic,)}
"""Files beside a detector's own that hold limits of it."""

HEAD = """\
# Detectors

Every detector that runs in each cycle, in the words of its own file: how it decides, and what it leaves to others.
A detector answers with findings or says why it has no verdict; rules make alerts of findings, and correlation makes
one incident of what belongs together. Each is told with a picture, and with when it
misleads, in [how detection decides](../explanation/detection.md); the figures of the fault benchmark stand in
[their own page](drill-figures.md).

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
    told = EXPLAINED[module.__name__.rpartition(".")[2]]
    page = f"[How it decides, with a picture](../explanation/detection/{told}.md).\n"
    signals = dict.fromkeys(key.name for one in found.values() for key in one.keys)
    said = rest.strip().replace("``", "`")
    return "\n".join(
        (
            f"\n## {names}\n",
            first.replace("``", "`"),
            *((f"\n{said}",) if said else ()),
            f"\nReads {_told(signals)}.\n",
            *_limits(module, *SHARED.get(module.__name__, ())),
            page,
        )
    )


def _limits(*modules: ModuleType) -> Iterable[str]:
    """The numbers of a detector with the reasons beside them, as its files say."""
    rows = [row for module in modules for row in _rows(module)]
    return ("| limit | is | because |", "|---|---|---|", *rows, "") if rows else ()


def _rows(module: ModuleType) -> Iterable[str]:
    lines = inspect.getsource(module).splitlines()
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.Call | ast.Tuple | ast.BinOp):
            names = ", ".join(f"`{one.id}`" for target in node.targets for one in ast.walk(target) if _is_limit(one))
            code, _, reason = lines[node.lineno - 1].partition("  # ")
            if names and reason and node.lineno == node.end_lineno:
                yield f"| {names} | `{code.partition(' = ')[2].strip()}` | {reason.strip()} |"


def _is_limit(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id.isupper()


def _told(signals: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(signals)) or "events alone"


def _file(module: ModuleType) -> str:
    return module.__name__.replace(".", "/") + ".py"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
