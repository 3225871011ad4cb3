"""Request rates of a CSV file, with the columns ``time_utc`` and ``requests_per_second``, line by line."""

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
"""Requests a second: what is above is a slip of the pen, and would overflow sums over weeks."""
_EXAMPLE = "write a line as 2026-01-05T00:10:00Z,21.5"


def read(text: str, source: str) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Instants (unix seconds), requests a second and the numbers of their lines, as they stand.

    A load is NaN where its line has none (empty or ``nan``).

    An instant without an offset is refused: a clock of local time would shift the load by hours, and twice a year by
    one more. Raises UsageError naming ``source`` and the line of the first value that is no instant, no number,
    negative, or beyond ``MOST``.
    """
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")))
    try:
        names = reader.fieldnames or ()
    except csv.Error as error:
        raise UsageError(f"{source}:1: {error}", hint="give a CSV file of text") from error
    if not set(COLUMNS) <= set(names):
        said = f"{source} is empty" if not text.strip() else f"{source}: no columns {' and '.join(COLUMNS)}"
        raise UsageError(said, hint=f"the first line names the columns, apart by commas: {','.join(COLUMNS)}")
    found = list(_lines(reader, source))
    if not found:
        raise UsageError(f"{source} holds no load", hint=f"{_EXAMPLE}, a line for each slot of a week or more")
    lines, times, values = zip(*found, strict=True)
    return np.array(times, dtype=np.float64), np.array(values, dtype=np.float64), np.array(lines, dtype=np.int64)


def _lines(reader: csv.DictReader[str], source: str) -> Iterator[tuple[int, float, float]]:
    rows: Iterator[Mapping[str | None, str | None]] = iter(reader)
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise UsageError(f"{source}:{reader.line_num}: {error}", hint="give a CSV file of text") from error
        if row is None:
            return
        where = f"{source}:{reader.line_num}"
        if None in row:
            raise UsageError(f"{where}: more values than columns", hint="write numbers with a point: 21.5, not 21,5")
        yield reader.line_num, _instant(row[COLUMNS[0]], where), _load(row[COLUMNS[1]], where)


def _instant(text: str | None, where: str) -> float:
    said = (text or "").strip()
    try:
        return parse_rfc3339(said).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{where}: {error}", hint=_EXAMPLE) from error


def _load(text: str | None, where: str) -> float:
    said = (text or "").strip()
    if not said:
        return nan
    try:
        value = float(said)
    except ValueError as error:
        raise UsageError(f"{where}: {said!r} is no load", hint="give requests per second as a number alone") from error
    if isnan(value):
        return nan
    if not isfinite(value) or not 0 <= value <= MOST:
        hint = f"requests per second are 0 to {MOST:g}; leave a missing one empty"
        raise UsageError(f"{where}: a load of {value:g}", hint=hint)
    return value
