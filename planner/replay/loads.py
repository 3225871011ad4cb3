"""Reads request rates of a CSV file with the columns ``time_utc`` and ``requests_per_second``."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from math import isfinite, isnan, nan

import numpy as np
from numpy.typing import NDArray

from outrider.clock import parse_rfc3339
from outrider.errors import UsageError
from outrider.model import Floats

COLUMNS = ("time_utc", "requests_per_second")
MOST = 1e9
"""Largest rate in requests per second: higher ones are typing errors, and would overflow sums over weeks."""
_EXAMPLE = "write a line as 2026-01-05T00:10:00Z,21.5"


def read(text: str, source: str) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Returns timestamps (unix seconds), requests per second and line numbers, in file order.

    A load is NaN if its line has none (empty or ``nan``). A timestamp without an offset is refused: local time would
    shift the load by hours, and by one more twice a year. Raises UsageError with ``source`` and the line of the first
    value that is not a timestamp, not a number, negative, or above ``MOST``.
    """
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")))
    try:
        names = reader.fieldnames or ()
    except csv.Error as error:
        raise UsageError(f"{source}:1: {error}", hint="give a CSV text file") from error
    if not set(COLUMNS) <= set(names):
        message = f"{source} is empty" if not text.strip() else f"{source}: columns {' and '.join(COLUMNS)} are missing"
        raise UsageError(message, hint=f"the first line must list the columns: {','.join(COLUMNS)}")
    rows = list(_lines(reader, source))
    if not rows:
        raise UsageError(f"{source} has no load values", hint=f"{_EXAMPLE}, one line for each slot of a week or more")
    lines, times, values = zip(*rows, strict=True)
    return np.array(times, dtype=np.float64), np.array(values, dtype=np.float64), np.array(lines, dtype=np.int64)


def _lines(reader: csv.DictReader[str], source: str) -> Iterator[tuple[int, float, float]]:
    rows: Iterator[Mapping[str | None, str | None]] = iter(reader)
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise UsageError(f"{source}:{reader.line_num}: {error}", hint="give a CSV text file") from error
        if row is None:
            return
        location = f"{source}:{reader.line_num}"
        if None in row:
            raise UsageError(
                f"{location}: more values than columns", hint="write decimals with a point: 21.5, not 21,5"
            )
        yield reader.line_num, _instant(row[COLUMNS[0]], location), _load(row[COLUMNS[1]], location)


def _instant(text: str | None, location: str) -> float:
    stripped = (text or "").strip()
    try:
        return parse_rfc3339(stripped).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{location}: {error}", hint=_EXAMPLE) from error


def _load(text: str | None, location: str) -> float:
    stripped = (text or "").strip()
    if not stripped:
        return nan
    try:
        value = float(stripped)
    except ValueError as error:
        raise UsageError(
            f"{location}: {stripped!r} is not a load", hint="give requests per second as a plain number"
        ) from error
    if isnan(value):
        return nan
    if not isfinite(value) or not 0 <= value <= MOST:
        hint = f"requests per second are 0 to {MOST:g}; leave a missing one empty"
        raise UsageError(f"{location}: invalid load {value:g}", hint=hint)
    return value
