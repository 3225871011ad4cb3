"""Reads labeled recordings from disk: server metrics as npz, the Numenta benchmark as CSV."""

from __future__ import annotations

import csv
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import UsageError
from outrider.model import Floats

_SERVERS_HINT = "expected NAME.npz files, each with train (times, metrics), test (times, metrics), label (times,)"
_ARRAYS = ("train", "test", "label")
_NAB_HINT = "expected combined_windows.json and data/ as in numenta/NAB"


@dataclass(frozen=True, slots=True)
class Recording:
    """One entity: metrics of shape (times, metrics), the first ``train`` times without labels."""

    name: str
    times: Floats  # unix seconds
    values: Floats
    train: int
    labels: NDArray[np.bool_]  # (times,), False while training


def servers(folder: Path, step_seconds: float) -> list[Recording]:
    """Reads every npz of a folder, by name. Labels are kept apart from the detector's input. Raises UsageError."""
    paths = _listed(folder, "*.npz", _SERVERS_HINT)
    return [_server(path, step_seconds) for path in paths]


def _listed(folder: Path, pattern: str, hint: str) -> list[Path]:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint=hint)
    paths = sorted(folder.glob(pattern))
    if not paths:
        raise UsageError(f"{folder} has no {pattern}", hint=hint)
    return paths


def _server(path: Path, step_seconds: float) -> Recording:
    train, test, labels = _arrays(path)
    if train.ndim != 2 or test.ndim != 2 or train.shape[1] != test.shape[1] or train.shape[1] == 0:
        raise UsageError(f"{path}: train is {train.shape} and test {test.shape}", hint=_SERVERS_HINT)
    if labels.shape != test.shape[:1] or not np.isin(labels, (0, 1)).all():
        raise UsageError(
            f"{path}: label must be 0 or 1 for each of the {test.shape[0]} times of test", hint=_SERVERS_HINT
        )
    values: Floats = np.concatenate((train, test))
    marked = np.concatenate((np.zeros(train.shape[0], dtype=bool), labels == 1))
    times = step_seconds * np.arange(values.shape[0], dtype=np.float64)
    return Recording(path.stem, times, values, train.shape[0], marked)


def _arrays(path: Path) -> list[Floats]:
    """Reads the three arrays of a file. Numpy's errors on bad files mention pickles, so they are replaced."""
    try:
        with path.open("rb") as opened:
            if not zipfile.is_zipfile(opened):
                raise UsageError(f"{path} is not an npz archive of numpy.savez", hint=_SERVERS_HINT)
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as read:
                missing = [name for name in _ARRAYS if name not in read.files]
                if missing:
                    raise UsageError(f"{path} has no array named {' or '.join(missing)}", hint=_SERVERS_HINT)
                return [_numbers(path, name, read) for name in _ARRAYS]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", hint=_SERVERS_HINT) from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"{path} is truncated or damaged: it cannot be unpacked", hint=_SERVERS_HINT) from error


def _numbers(path: Path, name: str, read: Mapping[str, Any]) -> Floats:
    try:
        return np.asarray(read[name]).astype(np.float64)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} is not an npz of numbers: {name} has other values", hint=_SERVERS_HINT) from error


def nab(folder: Path) -> list[Recording]:
    """Reads every series of the benchmark's window file, in its order. Raises UsageError."""
    path = next(
        (
            candidate
            for candidate in (folder / "combined_windows.json", folder / "labels" / "combined_windows.json")
            if candidate.is_file()
        ),
        None,
    )
    if path is None:
        raise UsageError(f"{folder} has no combined_windows.json", hint=_NAB_HINT)
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not JSON: {error}", hint=_NAB_HINT) from error
    if not isinstance(listed, dict) or not listed:
        raise UsageError(f"{path} lists no series", hint=_NAB_HINT)
    return [_series(folder / "data" / name, name, path, windows) for name, windows in listed.items()]


def _series(path: Path, name: str, listing: Path, windows: Any) -> Recording:
    times, values = _rows(path)
    labels = np.zeros(times.size, dtype=bool)
    try:
        for begin, end in windows:
            first, last = (_instant(text) for text in (begin, end))
            labels |= (times >= first) & (times <= last)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{listing}: {name}: {error}", hint="each window is a pair of times") from error
    return Recording(name, times, values[:, None], 0, labels)


def _rows(path: Path) -> tuple[Floats, Floats]:
    times: list[float] = []
    values: list[float] = []
    try:
        with path.open(encoding="utf-8", newline="") as opened:
            for number, row in enumerate(csv.reader(opened), 1):
                if number == 1 or not row:
                    continue
                try:
                    times.append(_instant(row[0]))
                    values.append(float(row[1]))
                except (IndexError, ValueError) as error:
                    raise UsageError(f"{path}:{number}: {','.join(row)}", hint="expected timestamp,value") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint=_NAB_HINT) from error
    if not times:
        raise UsageError(f"{path} has no rows", hint="expected timestamp,value")
    return np.array(times), np.array(values)


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
