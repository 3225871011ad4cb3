"""Spells: how long something has been so, counted in scrapes and in seconds, for all entities at once.

A window has one column per cycle, but a target answers at its own pace: a cell without a value is
neither for nor against anything. So every count here is over the columns an entity was seen in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model import CellStatus, EntityRef, Finding, Floats, NoVerdict, NoVerdictReason, Statuses, Window

Flags = NDArray[np.bool_]
Counts = NDArray[np.intp]
CLOCK_SLACK_SECONDS = 5.0  # a step back of more than this holds decisions (DESIGN: clock)
LATE_STEPS = 3  # a value older than this many cycles says nothing about now


@dataclass(frozen=True, slots=True)
class Spell:
    """The unbroken run that reaches the newest seen column. All arrays have shape (entities,).

    ``scrapes`` is its length in seen columns, 0 when the newest one breaks it. ``start`` is the index
    of its first column, meaningless while ``scrapes`` is 0. ``seconds`` runs from the last seen
    column before it (the last time it was known to be otherwise) to its newest one; from its own
    first column when nothing was seen before.
    """

    scrapes: Counts
    start: Counts
    seconds: Floats

    def lasts(self, seconds: float, scrapes: int) -> Flags:
        """Where it has gone on for so long, and has been seen so often."""
        found: Flags = (self.seconds >= seconds) & (self.scrapes >= scrapes)
        return found


def spell(seen: Flags, holds: Flags, times: Floats) -> Spell:
    """The newest unbroken run of ``holds`` over the columns ``seen``, both (entities, times)."""
    rows, columns = seen.shape
    if columns == 0:
        nothing = np.zeros(rows, dtype=np.intp)
        return Spell(nothing, nothing, np.zeros(rows))
    index = np.arange(columns)
    broken = newest_index(seen & ~holds)
    inside = seen & (index[None, :] > broken[:, None])
    scrapes = inside.sum(axis=1).astype(np.intp)
    start = np.where(scrapes > 0, np.argmax(inside, axis=1), 0).astype(np.intp)
    end = np.maximum(newest_index(inside), 0)
    origin = np.where(broken >= 0, broken, start)
    seconds = np.where(scrapes > 0, times[end] - times[origin], 0.0)
    return Spell(scrapes, start, seconds)


def newest_index(flags: Flags) -> Counts:
    """The newest column in which each row is set, -1 where none is."""
    columns = flags.shape[1]
    if columns == 0:
        return np.full(flags.shape[0], -1, dtype=np.intp)
    last = columns - 1 - np.argmax(flags[:, ::-1], axis=1)
    return np.where(flags.any(axis=1), last, -1).astype(np.intp)


def at_index(values: Floats, index: Counts) -> Floats:
    """The value of each row at its own column; NaN where the index is negative."""
    if values.shape[1] == 0:
        return np.full(values.shape[0], np.nan)
    found = values[np.arange(values.shape[0]), np.maximum(index, 0)]
    return np.where(index >= 0, found, np.nan)


def newest(window: Window, values: Floats, late_steps: int = LATE_STEPS) -> Floats:
    """Each row's newest value that is not older than ``late_steps`` cycles; NaN otherwise."""
    index = newest_index(~np.isnan(values))
    found = at_index(values, index)
    if window.times.size == 0:
        return found
    age = window.times[-1] - window.times[np.maximum(index, 0)]
    return np.where(age <= late_seconds(window, late_steps), found, np.nan)


def late_seconds(window: Window, late_steps: int = LATE_STEPS) -> float:
    """How old a value may be and still speak about now; never under a minute."""
    return max(60.0, late_steps * window.step.total_seconds())


def previous_index(seen: Flags) -> Counts:
    """For every cell the seen column before it, -1 where there is none; (entities, times)."""
    before = np.full(seen.shape, -1, dtype=np.intp)
    if seen.shape[1] > 1:
        index = np.where(seen, np.arange(seen.shape[1])[None, :], -1)
        before[:, 1:] = np.maximum.accumulate(index, axis=1)[:, :-1]
    return before


def gaps(seen: Flags, times: Floats) -> Floats:
    """Seconds between each seen column and the seen one before it, NaN elsewhere; (entities, times)."""
    if seen.shape[1] == 0:
        return np.full(seen.shape, np.nan)
    before = previous_index(seen)
    return np.where(seen & (before >= 0), times[None, :] - times[np.maximum(before, 0)], np.nan)


def unusable(window: Window, now_seconds: float) -> NoVerdictReason | None:
    """Why nothing at all can be said about a window, None when it can be read."""
    if window.times.size == 0:
        return NoVerdictReason.NO_VALUES
    rising = bool(np.all(np.diff(window.times) > 0))
    if not rising or window.times[-1] > now_seconds + CLOCK_SLACK_SECONDS:
        return NoVerdictReason.CLOCK_STEP
    return None


def why_silent(statuses: Statuses, rows: Counts) -> list[NoVerdictReason]:
    """The reason each row has no value now, read from its newest status; ``statuses`` is (entities, times)."""
    newest_status = statuses[rows, -1] if statuses.shape[1] else np.full(rows.size, CellStatus.ABSENT)
    doubtful = (newest_status == CellStatus.STALE) | (newest_status == CellStatus.UNTRUSTED)
    doubtful |= newest_status == CellStatus.RESET
    reasons = (NoVerdictReason.NO_VALUES, NoVerdictReason.UNTRUSTED_VALUES)
    return [reasons[int(flag)] for flag in doubtful]


def silences(
    detector: str, entities: tuple[EntityRef, ...], statuses: Statuses, silent: Flags
) -> tuple[NoVerdict, ...]:
    """One NoVerdict per silent entity; a single one about all of them when nobody can be judged."""
    rows = np.flatnonzero(silent)
    if rows.size == 0:
        return ()
    reasons = why_silent(statuses, rows)
    if rows.size == len(entities) and len(set(reasons)) == 1:
        return (NoVerdict(detector, None, reasons[0]),)
    return tuple(NoVerdict(detector, entities[row], reason) for row, reason in zip(rows, reasons, strict=True))


def unseen(detector: str, window: Window, said: Iterable[Finding | NoVerdict]) -> tuple[NoVerdict, ...]:
    """NoVerdicts about entities without a single value in the window, of which nothing was said otherwise."""
    about = {one.entity for one in said}
    if None in about or not window.entities:
        return ()
    empty = np.zeros(len(window.entities), dtype=np.bool_)
    empty[:] = np.isnan(window.values[:, -1:]).all(axis=(1, 2))
    rows = np.flatnonzero(empty)  # most have a value in the newest column: the others alone are looked at in full
    empty[rows] = np.isnan(window.values[rows]).all(axis=(1, 2))
    for row in np.flatnonzero(empty):
        empty[row] = window.entities[row] not in about
    return silences(detector, window.entities, window.status.min(axis=2), empty) if empty.any() else ()
