"""Duration of conditions in scrapes and in seconds, vectorized over all entities.

A window has one column per cycle, but targets are scraped at their own interval. A cell without a value neither
confirms nor breaks a condition, so counts only include columns in which an entity was seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model import CellStatus, EntityRef, Finding, Floats, NoVerdict, NoVerdictReason, Statuses, Window

Flags = NDArray[np.bool_]
Counts = NDArray[np.intp]
CLOCK_SLACK_SECONDS = 5.0  # a larger step back of the clock suspends decisions
LATE_STEPS = 3  # cycles after which a value no longer describes the present


@dataclass(frozen=True, slots=True)
class ConditionDuration:
    """The unbroken run that ends at the newest seen column. All arrays have shape (entities,).

    ``scrapes`` is its length in seen columns, 0 if the newest column breaks it. ``start`` is the index of its first
    column, undefined while ``scrapes`` is 0. ``seconds`` runs from the last seen column before the run to its newest
    column. If nothing was seen before the run, it starts at the run's first column.
    """

    scrapes: Counts
    start: Counts
    seconds: Floats

    def lasts(self, seconds: float, scrapes: int) -> Flags:
        """True for each run of at least this many seconds and scrapes."""
        result: Flags = (self.seconds >= seconds) & (self.scrapes >= scrapes)
        return result


def measure_run(seen: Flags, holds: Flags, times: Floats) -> ConditionDuration:
    """Returns the newest unbroken run of ``holds`` over the columns ``seen``, both (entities, times)."""
    rows, columns = seen.shape
    if columns == 0:
        nothing = np.zeros(rows, dtype=np.intp)
        return ConditionDuration(nothing, nothing, np.zeros(rows))
    index = np.arange(columns)
    broken = newest_index(seen & ~holds)
    inside = seen & (index[None, :] > broken[:, None])
    scrapes = inside.sum(axis=1).astype(np.intp)
    start = np.where(scrapes > 0, np.argmax(inside, axis=1), 0).astype(np.intp)
    end = np.maximum(newest_index(inside), 0)
    origin = np.where(broken >= 0, broken, start)
    seconds = np.where(scrapes > 0, times[end] - times[origin], 0.0)
    return ConditionDuration(scrapes, start, seconds)


def newest_index(flags: Flags) -> Counts:
    """The newest set column of each row; -1 if no column is set."""
    columns = flags.shape[1]
    if columns == 0:
        return np.full(flags.shape[0], -1, dtype=np.intp)
    last = columns - 1 - np.argmax(flags[:, ::-1], axis=1)
    return np.where(flags.any(axis=1), last, -1).astype(np.intp)


def at_index(values: Floats, index: Counts) -> Floats:
    """The value of each row at its own column; NaN if the index is negative."""
    if values.shape[1] == 0:
        return np.full(values.shape[0], np.nan)
    result = values[np.arange(values.shape[0]), np.maximum(index, 0)]
    return np.where(index >= 0, result, np.nan)


def newest(window: Window, values: Floats, late_steps: int = LATE_STEPS) -> Floats:
    """The newest value of each row that is at most ``late_steps`` cycles old; NaN otherwise."""
    index = newest_index(~np.isnan(values))
    result = at_index(values, index)
    if window.times.size == 0:
        return result
    age = window.times[-1] - window.times[np.maximum(index, 0)]
    return np.where(age <= late_seconds(window, late_steps), result, np.nan)


def late_seconds(window: Window, late_steps: int = LATE_STEPS) -> float:
    """Maximum age in seconds at which a value still describes the present; at least 60."""
    return max(60.0, late_steps * window.step.total_seconds())


def previous_index(seen: Flags) -> Counts:
    """The previous seen column of every cell, -1 if there is none; (entities, times)."""
    before = np.full(seen.shape, -1, dtype=np.intp)
    if seen.shape[1] > 1:
        index = np.where(seen, np.arange(seen.shape[1])[None, :], -1)
        before[:, 1:] = np.maximum.accumulate(index, axis=1)[:, :-1]
    return before


def gaps(seen: Flags, times: Floats) -> Floats:
    """Seconds between each seen column and the previous seen one, NaN elsewhere; (entities, times)."""
    if seen.shape[1] == 0:
        return np.full(seen.shape, np.nan)
    before = previous_index(seen)
    return np.where(seen & (before >= 0), times[None, :] - times[np.maximum(before, 0)], np.nan)


def unusable_reason(window: Window, now_seconds: float) -> NoVerdictReason | None:
    """The reason that a window cannot be judged at all; None if it can."""
    if window.times.size == 0:
        return NoVerdictReason.NO_VALUES
    rising = bool(np.all(np.diff(window.times) > 0))
    if not rising or window.times[-1] > now_seconds + CLOCK_SLACK_SECONDS:
        return NoVerdictReason.CLOCK_STEP
    return None


def no_verdict_reasons(statuses: Statuses, rows: Counts) -> list[NoVerdictReason]:
    """The reason that each row has no value now, from its newest status; ``statuses`` is (entities, times)."""
    newest_status = statuses[rows, -1] if statuses.shape[1] else np.full(rows.size, CellStatus.ABSENT)
    doubtful = (newest_status == CellStatus.STALE) | (newest_status == CellStatus.UNTRUSTED)
    doubtful |= newest_status == CellStatus.RESET
    reasons = (NoVerdictReason.NO_VALUES, NoVerdictReason.UNTRUSTED_VALUES)
    return [reasons[int(flag)] for flag in doubtful]


def no_verdicts(
    detector: str, entities: tuple[EntityRef, ...], statuses: Statuses, silent: Flags
) -> tuple[NoVerdict, ...]:
    """One NoVerdict per entity without a verdict; a single one for all if none can be judged."""
    rows = np.flatnonzero(silent)
    if rows.size == 0:
        return ()
    reasons = no_verdict_reasons(statuses, rows)
    if rows.size == len(entities) and len(set(reasons)) == 1:
        return (NoVerdict(detector, None, reasons[0]),)
    return tuple(NoVerdict(detector, entities[row], reason) for row, reason in zip(rows, reasons, strict=True))


def unseen(detector: str, window: Window, verdicts: Iterable[Finding | NoVerdict]) -> tuple[NoVerdict, ...]:
    """NoVerdicts for entities without any value in the window and without another verdict."""
    about = {item.entity for item in verdicts}
    if None in about or not window.entities:
        return ()
    empty = np.zeros(len(window.entities), dtype=np.bool_)
    empty[:] = np.isnan(window.values[:, -1:]).all(axis=(1, 2))
    rows = np.flatnonzero(empty)  # fast path: most rows have a value in the newest column
    empty[rows] = np.isnan(window.values[rows]).all(axis=(1, 2))
    for row in np.flatnonzero(empty):
        empty[row] = window.entities[row] not in about
    return no_verdicts(detector, window.entities, window.status.min(axis=2), empty) if empty.any() else ()
