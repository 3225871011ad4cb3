"""Recorded request rates for replay: read from CSV, gaps filled, random access by time."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from outrider.errors import UsageError
from outrider.model import Floats

COLUMNS = ("time_utc", "requests_per_second")
PEAK_QUANTILE = 0.999  # quantile used as the peak, to ignore one outlier slot in a thousand
DAY_SECONDS = 86400.0
WEEK_SECONDS = 7 * DAY_SECONDS


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Rates on a regular grid: ``rates[i]`` applies from ``start + i * step_seconds`` (unix). Compared by identity."""

    name: str
    start: float
    step_seconds: float
    rates: Floats

    @property
    def peak(self) -> float:
        """The rate exceeded by only one slot in a thousand."""
        return float(np.quantile(self.rates, PEAK_QUANTILE))

    def at(self, times: Floats) -> Floats:
        """Returns rates at any times, linear between slots.

        A trace repeats before its start and after its end in whole weeks (days if it is shorter than a week), so that
        hours and weekdays keep their position.
        """
        length = self.rates.size * self.step_seconds
        for unit in (WEEK_SECONDS, DAY_SECONDS):
            if length >= unit:
                length = np.floor(length / unit) * unit
                break
        position = np.mod(times - self.start, length) / self.step_seconds
        slot = np.floor(position).astype(np.int64)
        slots = max(1, round(length / self.step_seconds))
        low, high = self.rates[slot % slots], self.rates[(slot + 1) % slots]
        return np.asarray(low + (high - low) * (position - slot), dtype=np.float64)


def read_trace(path: Path) -> Trace:
    """Reads a CSV with columns time_utc and requests_per_second on a regular grid; empty or NaN cells are missing.

    A missing slot gets the value of the same time on the previous day, on the first day that of the next day. Raises
    UsageError with the line or the missing part.
    """
    times, rates = _cells(path)
    if len(times) < 2:
        raise UsageError(f"{path} has fewer than two rows", hint="a trace needs a regular grid of at least two times")
    step = float(np.median(np.diff(times)))
    if step <= 0 or not np.allclose(np.diff(times), step):
        raise UsageError(
            f"{path} is not on a regular grid", hint="write one row per step; leave the rate of missing ones empty"
        )
    return Trace(path.stem, times[0], step, bridged(np.array(rates), max(1, round(DAY_SECONDS / step))))


def bridged(rates: Floats, per_day: int) -> Floats:
    """Returns ``rates`` with every NaN filled from an earlier day, else from a later day, else 0."""
    result = rates.copy()
    for number in range(per_day, result.size):
        if np.isnan(result[number]):
            result[number] = result[number - per_day]
    for number in range(result.size - per_day - 1, -1, -1):
        if np.isnan(result[number]):
            result[number] = result[number + per_day]
    return np.nan_to_num(result)


def _cells(path: Path) -> tuple[list[float], list[float]]:
    if not path.is_file():
        raise UsageError(f"{path} does not exist", hint=f"name a CSV file with columns {', '.join(COLUMNS)}")
    times, rates = [], []
    with path.open(newline="", encoding="utf-8") as text:
        rows = csv.DictReader(text)
        if rows.fieldnames is None or not set(COLUMNS) <= set(rows.fieldnames):
            raise UsageError(f"{path}:1 lacks a column", hint=f"the first line must have {', '.join(COLUMNS)}")
        for row in rows:
            try:
                at = datetime.fromisoformat(row["time_utc"])
                rate = float(row["requests_per_second"] or "nan")
            except ValueError as error:
                raise UsageError(f"{path}:{rows.line_num} is not a time and a rate", hint=str(error)) from error
            if at.tzinfo is None or rate < 0:
                raise UsageError(
                    f"{path}:{rows.line_num} has a time without zone or a negative rate",
                    hint="write times such as 2026-11-18T10:00:00Z and rates of 0 or more",
                )
            times.append(at.timestamp())
            rates.append(rate)
    return times, rates
