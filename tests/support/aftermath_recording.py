"""Longer recordings made of a real one: slower in time, then continued by its healthy part over and over."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]
Page = list[tuple[str, float | None]]  # lines of a page: the name with its labels and its value, or text without one


def extend(source: Path, target: Path, *, slower: float, healthy: slice, minutes: float, load: bool = True) -> Path:
    """Writes ``source`` with its times multiplied, followed by ``minutes`` of its ``healthy`` scrapes.

    Counters go on from their last values. Without ``load`` the requests in flight are known from the page alone.
    """
    lines = _read(source)
    first, spacing = lines[0]["t"], (lines[1]["t"] - lines[0]["t"]) * slower
    with gzip.open(target, "wt", encoding="utf-8") as file:
        for line in _continued(lines, healthy, round(minutes * 60 / spacing)):
            kept = line if load else {key: value for key, value in line.items() if key != "load"}
            file.write(json.dumps(kept | {"t": first + (line["t"] - first) * slower}) + "\n")
    return target


def _read(source: Path) -> list[Line]:
    with gzip.open(source, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _continued(lines: list[Line], healthy: slice, count: int) -> Iterator[Line]:
    yield from lines
    pattern = lines[healthy]
    pages = [_parsed(line["text"]) for line in pattern]
    counters = set(_counters(pattern[0]["text"]))
    last, values = lines[-1], {name: value for name, value in _parsed(lines[-1]["text"]) if value is not None}
    spacing = lines[1]["t"] - lines[0]["t"]
    for number in range(1, count + 1):
        place = (number - 1) % (len(pattern) - 1) + 1
        before = {name: value for name, value in pages[place - 1] if value is not None}
        now = {name: value for name, value in pages[place] if value is not None}
        for name, value in now.items():
            grows = name.split("{")[0] in counters
            values[name] = values.get(name, 0.0) + value - before.get(name, 0.0) if grows else value
        page = [name if value is None else f"{name} {values[name]!r}" for name, value in pages[place]]
        yield pattern[place] | {"t": last["t"] + number * spacing, "text": "\n".join(page) + "\n"}


def _parsed(text: str) -> Page:
    rows: Page = []
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        rows.append((line, None) if line.startswith("#") or not name else (name, float(value)))
    return rows


def _counters(text: str) -> Iterator[str]:
    """Names of samples that only grow: counters, and the parts of histograms and summaries."""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            if kind == "counter":
                yield name
            elif kind in ("histogram", "summary"):
                yield from (f"{name}_bucket", f"{name}_sum", f"{name}_count")
