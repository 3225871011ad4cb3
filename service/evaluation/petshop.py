"""Reads labeled incidents of a call graph from one traffic folder in the PetShop format.

``graph.csv`` is a matrix, rows call columns. ``metrics.csv`` has three rows of headings (microservice,
metric, statistic), a row with ``unix_timestamp``, then one row per step with its start time:
``latency`` Average in seconds, ``availability`` Average in percent, ``requests`` Sum. ``noissue/`` holds
a quiet window, ``train/*/`` and ``test/*/`` one incident each with its ``target.json``.
Source: Hardt et al., "The PetShop Dataset", CLeaR 2024.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.rca.call_excess import Calls, Symptom
from detectors.rca.call_graph import CallGraph
from outrider.errors import UsageError
from outrider.model import Floats

PARTS = ("train", "test")
SYMPTOMS = {"latency": Symptom.LATENCY, "availability": Symptom.FAILURES, "requests": Symptom.REQUESTS}
_COLUMNS = (("requests", "Sum"), ("latency", "Average"), ("availability", "Average"))
_HEADINGS = ("microservice", "metric", "statistic")
_HINT = "DATA is one traffic folder with graph.csv, noissue/metrics.csv, and issues in train/ or test/"


@dataclass(frozen=True, slots=True)
class MetricsFile:
    """One ``metrics.csv``. ``columns`` (service, metric, statistic) of ``values`` (steps, columns); NaN is missing."""

    columns: tuple[tuple[str, str, str], ...]
    begins: Floats  # unix seconds, (steps,)
    values: Floats

    def calls(self, services: Sequence[str], steps: NDArray[np.bool_] | None = None) -> Calls:
        """Returns requests, latency and success ratio in the order of ``services``; NaN without a column."""
        index = {column: number for number, column in enumerate(self.columns)}
        chosen = self.values if steps is None else self.values[steps]
        values = np.full((len(_COLUMNS), len(services), chosen.shape[0]), np.nan)
        for kind, column in enumerate(_COLUMNS):
            for row, service in enumerate(services):
                number = index.get((service, *column))
                if number is not None:
                    values[kind, row] = chosen[:, number]
        return Calls(values[0], values[1], values[2] / 100.0)


@dataclass(frozen=True, slots=True)
class Issue:
    """One labeled incident. ``cause`` and ``target`` are service names, ``since`` is in unix seconds."""

    part: str
    name: str
    target: str
    symptom: Symptom
    since: float
    cause: str
    measured: MetricsFile


@dataclass(frozen=True, slots=True)
class Folder:
    """One traffic folder. ``services`` are those of the graph, then those with metrics only."""

    services: tuple[str, ...]
    graph: CallGraph
    normal: MetricsFile
    step_seconds: float
    issues: tuple[Path, ...]


def open_folder(path: Path) -> Folder:
    """Reads the graph and the quiet window, and lists the incidents. Raises UsageError with file and line."""
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder", hint=_HINT)
    issues = tuple(issue for part in PARTS for issue in sorted((path / part).glob("*/"), key=_natural))
    if not issues:
        raise UsageError(f"{path} has no issues in train/ or test/", hint=_HINT)
    names, pairs = _read_graph(path / "graph.csv")
    normal = read_metrics(path / "noissue" / "metrics.csv")
    if normal.begins.size < 2:
        raise UsageError(f"{path / 'noissue' / 'metrics.csv'}: a quiet window needs at least two steps")
    measured = dict.fromkeys(service for service, _, _ in normal.columns)
    services = tuple(dict.fromkeys((*names, *measured)))
    step = float(np.median(np.diff(normal.begins)))
    return Folder(services, CallGraph.of(len(services), pairs), normal, step, issues)


def read_issue(path: Path) -> Issue:
    """Reads one incident. Raises UsageError with file and line."""
    document = _read_json(path / "target.json")
    target, cause = _part(document, "target", path), _part(document, "root_cause", path)
    metric, since = target.get("metric"), target.get("timestamp")
    if metric not in SYMPTOMS:
        raise UsageError(
            f"{path / 'target.json'}: target.metric is {metric!r}", hint=f"it is one of {', '.join(SYMPTOMS)}"
        )
    if isinstance(since, bool) or not isinstance(since, (int, float)):
        raise UsageError(f"{path / 'target.json'}: target.timestamp is {since!r}", hint="write unix seconds")
    nodes = [str(entry.get("node") or "") for entry in (target, cause)]
    if not all(nodes):
        raise UsageError(f"{path / 'target.json'}: target.node and root_cause.node must name a service")
    measured = read_metrics(path / "metrics.csv")
    return Issue(path.parent.name, path.name, nodes[0], SYMPTOMS[str(metric)], float(since), nodes[1], measured)


def read_metrics(path: Path) -> MetricsFile:
    """Reads one ``metrics.csv``. Raises UsageError with file and line."""
    rows = list(_rows(path))
    headings = [cells for _, cells in rows[: len(_HEADINGS)]]
    if [cells[0] for cells in headings] != list(_HEADINGS):
        raise UsageError(
            f"{path}:1: expected three rows of headings that begin with {', '.join(_HEADINGS)}", hint=_HINT
        )
    width = len(headings[0])
    if any(len(cells) != width for cells in headings):
        raise UsageError(f"{path}:1: the three rows of headings differ in length")
    columns = tuple((service, metric, statistic) for service, metric, statistic in zip(*headings, strict=True))[1:]
    if not any((metric, statistic) in _COLUMNS for _, metric, statistic in columns):
        raise UsageError(f"{path}:2: no column is {' or '.join(' '.join(column) for column in _COLUMNS)}", hint=_HINT)
    steps = [(line, cells) for line, cells in rows[len(_HEADINGS) :] if cells[0] != "unix_timestamp"]
    values = np.full((len(steps), width), np.nan)
    for row, (line, cells) in enumerate(steps):
        values[row] = _numbers(path, line, cells, width)
    if (np.diff(values[:, 0]) <= 0).any() or np.isnan(values[:, 0]).any():
        raise UsageError(f"{path}: timestamps in the first column must increase from line to line")
    return MetricsFile(columns, values[:, 0], values[:, 1:])


def _read_graph(path: Path) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    rows = list(_rows(path))
    names = tuple(rows[0][1][1:]) if rows else ()
    if not names or len(set(names)) != len(names):
        raise UsageError(f"{path}:1: expected the names of the services, each once", hint=_HINT)
    index = {name: number for number, name in enumerate(names)}
    pairs = []
    for line, cells in rows[1:]:
        if cells[0] not in index:
            raise UsageError(f"{path}:{line}: the row {cells[0]!r} is not among the columns", hint="rows call columns")
        called = np.flatnonzero(np.nan_to_num(_numbers(path, line, ["0", *cells[1:]], len(names) + 1)[1:]))
        pairs += [(index[cells[0]], int(number)) for number in called]
    return names, pairs


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, cells) of each non-empty line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=_HINT) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is not CSV in UTF-8", hint=_HINT) from error


def _numbers(path: Path, line: int, cells: Sequence[str], width: int) -> list[float]:
    if len(cells) != width:
        raise UsageError(f"{path}:{line}: {len(cells)} cells, expected {width}")
    try:
        return [float(cell) if cell else float("nan") for cell in cells]
    except ValueError as error:
        raise UsageError(f"{path}:{line}: {error}", hint="values are numbers, or empty where missing") from error


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=_HINT) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    return document if isinstance(document, dict) else {}


def _part(document: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    part = document.get(key)
    if not isinstance(part, dict):
        raise UsageError(f"{path / 'target.json'}: {key} is missing", hint="it needs target and root_cause")
    return part


def _natural(path: Path) -> tuple[str, int]:
    """Sort key: issue_2 before issue_10."""
    number = re.search(r"\d+$", path.name)
    return (path.name[: number.start()], int(number.group())) if number else (path.name, -1)
