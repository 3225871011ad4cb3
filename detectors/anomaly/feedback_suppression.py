"""Suppression of ensemble findings by operator feedback: a pattern judged not useful is not reported again.

Anomalous rows are stored for a month: the newest few hundred per class and a few dozen per entity. Rows within a span
judged not useful count as normal from then on. The same residual pattern on the same entity, hardly larger, has no
score and enters the reference. The rows follow from the verdicts alone: a later verdict, or another operator who found
a cause, reverts it. Other entities, other patterns and clearly larger ones are reported as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.base.protocols import AlertFeedback
from detectors.base.state_arrays import Arrays
from outrider.model import EntityRef

KEPT_SECONDS = 30 * 86400.0
MOST_ROWS, MOST_OF_ONE = 512, 32  # per class and per entity, so that one entity cannot displace the others
ALIKE = 0.85  # cosine similarity of two rows of residuals
LOUDER = 1.25  # of the length of the judged row; a longer row is a larger anomaly
_NAMES = ("aside", "aside_of", "aside_at", "aside_fine")


def empty(width: int) -> Arrays:
    """State without rows; ``width`` values per row."""
    return {
        "aside": np.zeros((0, width), dtype=np.float32),
        "aside_of": np.zeros(0, dtype=np.str_),
        "aside_at": np.zeros(0),
        "aside_fine": np.zeros(0, dtype=np.bool_),
    }


def held(arrays: Mapping[str, NDArray[Any]], width: int) -> Arrays:
    """The stored rows; none if any array does not fit."""
    result = {name: arrays.get(name) for name in _NAMES}
    fresh = empty(width)
    known = {name: array for name, array in result.items() if array is not None}
    fits = len(known) == len(fresh) and all(
        array.dtype.kind == fresh[name].dtype.kind and array.shape[1:] == fresh[name].shape[1:]
        for name, array in known.items()
    )
    return known if fits and len({array.shape[0] for array in known.values()}) == 1 else fresh


def put_aside(
    pool: Arrays, rows: NDArray[np.float32], entities: Sequence[EntityRef], anomalous: NDArray[np.bool_], at: float
) -> None:
    """Stores the anomalous rows of one time in ``pool``.

    Drops rows older than a month and the oldest beyond the limit; rows judged normal are dropped last.
    """
    keys = np.array([entities[int(row)].key for row in np.flatnonzero(anomalous)], dtype=np.str_)
    new = {
        "aside": rows[anomalous],
        "aside_of": keys,
        "aside_at": np.full(keys.size, at),
        "aside_fine": np.zeros(keys.size, dtype=np.bool_),
    }
    joined = {name: np.concatenate((pool[name], new[name])) for name in _NAMES}
    order = np.flatnonzero((joined["aside_at"] > at - KEPT_SECONDS) & _few_of_each(joined))
    doubtful = order[~joined["aside_fine"][order]]
    surplus = max(0, order.size - MOST_ROWS)
    left = np.setdiff1d(order, doubtful[:surplus])[-MOST_ROWS:]
    pool.update({name: array[left] for name, array in joined.items()})


def _few_of_each(pool: Arrays) -> NDArray[np.bool_]:
    """True for the newest few rows of each entity; those judged normal come first."""
    kept = np.ones(pool["aside_of"].size, dtype=np.bool_)
    if kept.size > MOST_OF_ONE:
        first = np.lexsort((-np.arange(kept.size), ~pool["aside_fine"], pool["aside_of"]))
        _, begins, sizes = np.unique(pool["aside_of"][first], return_index=True, return_counts=True)
        kept[first] = np.arange(kept.size) - np.repeat(begins, sizes) < MOST_OF_ONE
    return kept


def excused(pool: Arrays, rows: NDArray[np.float32], entities: Sequence[EntityRef]) -> NDArray[np.bool_]:
    """True for rows (entities, width) that match a pattern judged not useful and are hardly larger."""
    result = np.zeros(rows.shape[0], dtype=np.bool_)
    fine = np.flatnonzero(pool["aside_fine"])
    if fine.size == 0:
        return result
    wanted = set(pool["aside_of"][fine].tolist())
    place = {entity.key: row for row, entity in enumerate(entities) if entity.key in wanted}
    taught = fine[[key in place for key in pool["aside_of"][fine].tolist()]]
    who = np.array([place[key] for key in pool["aside_of"][taught].tolist()], dtype=np.intp)
    known, new = pool["aside"][taught].astype(np.float64), rows[who].astype(np.float64)
    lengths, length = np.linalg.norm(known, axis=1), np.linalg.norm(new, axis=1)
    # a row without any reading is NaN and matches nothing
    alike = (known * new).sum(axis=1) >= ALIKE * lengths * length
    result[who[alike & (length <= LOUDER * lengths)]] = True
    return result


def teach(pool: Arrays, lessons: Sequence[AlertFeedback], slack_seconds: float) -> NDArray[np.str_]:
    """Marks the rows that all given verdicts call normal. Returns the entities of newly marked rows.

    A span extends by ``slack_seconds`` at both ends. If verdicts disagree, the row stays anomalous.
    """
    fine, needed = np.zeros((2, pool["aside_at"].size), dtype=np.bool_)
    for lesson in lessons:
        start, end = lesson.start.timestamp() - slack_seconds, lesson.end.timestamp() + slack_seconds
        about = (pool["aside_of"] == lesson.entity.key) & (pool["aside_at"] >= start) & (pool["aside_at"] <= end)
        fine, needed = fine | (about & ~np.bool_(lesson.useful)), needed | (about & np.bool_(lesson.useful))
    fine &= ~needed
    news: NDArray[np.str_] = np.unique(pool["aside_of"][fine & ~pool["aside_fine"]])
    pool["aside_fine"] = fine
    return news
