"""Shared parts of the benchmarks: timing, result format, printing.

``--data DIR`` or ``$OUTRIDER_DATA`` is the folder of recorded data; a benchmark reports it if its data is missing.
Inputs that take minutes to build are cached in ``$OUTRIDER_CACHE``, by default ``~/.cache/outrider``.
``OUTRIDER_QUICK=1`` selects small runs, which only check that a benchmark works; their figures are not meaningful.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def result(
    name: str,
    value: float | None,
    unit: str,
    target: float | None,
    holds: bool | None,
    peer: str | None = None,
    peer_value: float | None = None,
    ratio: float | None = None,
    **more: Any,
) -> Result:
    """Returns one result line. ``holds`` is True if ``value`` meets ``target``, None without a target.

    ``peer`` was measured in the same run, in the same unit; a ``ratio`` above 1 means that we are better. Additional
    keys follow the standard ones; ``note`` is a sentence, printed below a table.
    """
    line = {
        "name": name,
        "value": _rounded(value),
        "unit": unit,
        "target": target,
        "holds": holds,
        "peer": peer,
        "peer_value": _rounded(peer_value),
        "ratio": _rounded(ratio),
    }
    return {**line, **more}


def _rounded(value: float | None) -> float | None:
    """Rounds to four significant digits; the rest is noise."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")


def best_of(times: int, work: Callable[[], object]) -> float:
    """Returns the seconds of the fastest of several runs, the least disturbed one."""
    best = math.inf
    for _ in range(times):
        gc.collect()
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def data_folder() -> Path | None:
    """Returns the folder of the recorded data, None if not set."""
    text = os.environ.get("OUTRIDER_DATA")
    return Path(text) if text else None


def quick() -> bool:
    """Returns True if a small run is requested."""
    return os.environ.get("OUTRIDER_QUICK", "") not in ("", "0")


def print_progress(text: str) -> None:
    """Logs the progress of a slow step on standard error."""
    print(f"  {text}", file=sys.stderr, flush=True)


def cached(name: str, parameters: object, sources: Iterable[Path], build: Callable[[Path], None]) -> Path:
    """Returns the folder that ``build`` fills, rebuilt if the parameters or the text of a source have changed.

    ``sources`` are files, or folders of Python and YAML files. The two most recent folders of a name are kept. A build
    that fails or is interrupted leaves nothing.
    """
    root = Path(os.environ.get("OUTRIDER_CACHE") or Path.home() / ".cache" / "outrider")
    folder = root / f"{name}-{_digest(parameters, sources)}"
    if not folder.exists():
        root.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
        try:
            build(making)
            making.rename(folder)
        except OSError:
            if not folder.exists():  # another run may have built it meanwhile
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    os.utime(folder)
    for path in sorted(root.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime, reverse=True)[2:]:
        shutil.rmtree(path, ignore_errors=True)
    return folder


def _digest(parameters: object, sources: Iterable[Path]) -> str:
    results = hashlib.sha256(json.dumps(parameters, sort_keys=True, default=str).encode())
    for source in sources:
        files = [source] if source.is_file() else [*source.rglob("*.py"), *source.rglob("*.yaml")]
        for path in sorted(files):
            results.update(path.name.encode() + path.read_bytes())
    return results.hexdigest()[:16]


def main(run: Callable[[], Result | Sequence[Result]], arguments: Sequence[str] | None = None) -> None:
    """Runs one benchmark and prints it: ``-o json`` one document, ``-o table`` (default on a terminal) a table."""
    parser = argparse.ArgumentParser(description=(run.__doc__ or "").partition("\n")[0])
    add_options(parser)
    options = parser.parse_args(arguments)
    use_data(options.data)
    show(run(), options.output)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options common to all benchmarks."""
    default = "table" if sys.stdout.isatty() else "json"
    parser.add_argument("-o", "--output", choices=["json", "table"], default=default)
    parser.add_argument("--data", help="folder of recorded data (default: $OUTRIDER_DATA)")


def use_data(folder: str | None) -> None:
    """Sets the folder that ``data_folder`` returns from ``--data``."""
    if folder:
        os.environ["OUTRIDER_DATA"] = folder


def show(results: Result | Sequence[Result], output: str) -> None:
    """Prints one result as an object, several as a list, or all as a table."""
    if output == "json":
        print(json.dumps(results, ensure_ascii=False, indent=2))
        return
    lines = [line | {"x target": _margin(line)} for line in ([results] if isinstance(results, dict) else results)]
    columns = ("name", "value", "unit", "target", "x target", "holds", "peer", "peer_value", "ratio")
    cells = [[_cell(line.get(column)) for column in columns] for line in lines]
    widths = [max(len(column), *(len(row[place]) for row in cells)) for place, column in enumerate(columns)]
    for row in [list(columns), *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for line in lines:
        if "note" in line:
            print(f"{line['name']}: {line['note']}")


def _margin(line: Result) -> float | None:
    """Returns the factor by which a value beats its target; below 1 if it misses the target."""
    value, target = line["value"], line["target"]
    if line["holds"] is None or not value or not target:
        return None
    margin = max(value / target, target / value)
    return _rounded(margin if line["holds"] else 1.0 / margin)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:,.6g}" if isinstance(value, (int, float)) else str(value)
