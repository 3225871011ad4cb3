"""Fills a grid from cells, for both metric stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import numpy as np

from outrider.model import EntityKind, EntityRef
from store.tsdb.arrays import Index, compact
from store.tsdb.blocks import Piece
from store.tsdb.chunk_codec import Section
from store.tsdb.cycle_matrix import Ids
from store.tsdb.grid import Column, ColumnRequest

LOOK_BACK: Final = timedelta(minutes=5)
"""Maximum age of the latest cell, as in Prometheus."""


class Rows:
    """Output rows of entities, looked up once per cohort."""

    def __init__(self, entities: Sequence[EntityRef], numbers: Mapping[EntityRef, int]) -> None:
        """``numbers`` are the stored numbers of the entities; an entity without one has no cells."""
        known = [(numbers[entity], row) for row, entity in enumerate(entities) if entity in numbers]
        self._rows = np.full(max((number for number, _ in known), default=0) + 1, -1, dtype=np.int64)
        for number, row in known:
            self._rows[number] = row
        self._cohorts: dict[int, tuple[Index, Index]] = {}

    def of(self, cohort: int, members: Ids) -> tuple[Index, Index]:
        """The requested members of a cohort, and their output rows."""
        if cohort not in self._cohorts:
            inside = members < self._rows.size
            rows = np.where(inside, self._rows[np.where(inside, members, 0)], -1)
            chosen = np.flatnonzero(rows >= 0)
            self._cohorts[cohort] = compact(chosen), compact(rows[chosen])
        return self._cohorts[cohort]


def fill(column: Column, request: ColumnRequest, piece: Piece, chosen: Index, rows: Index) -> None:
    """Folds one piece into the column of its signal. ``chosen`` are its entities, ``rows`` their output rows."""
    pairs = [(at, request.stored.index(key)) for at, key in enumerate(piece.keys) if key in request.stored]
    if not pairs or (isinstance(rows, slice) and rows.start == rows.stop):
        return
    source, target = (compact(np.array(side)) for side in zip(*pairs, strict=True))
    cells = piece.cells
    values = cells.values[source][:, chosen]
    status = None if cells.status is None else cells.status[source][:, chosen]
    weights = None if piece.weights is None else piece.weights[source][:, chosen]
    column.add(target, rows, piece.times, Section(values, status), weights)


def sorted_entities(entities: Mapping[int, EntityRef] | Sequence[EntityRef], kind: EntityKind) -> tuple[EntityRef, ...]:
    """Entities of a kind, sorted by key."""
    listed = entities.values() if isinstance(entities, Mapping) else entities
    return tuple(sorted((entity for entity in listed if entity.kind is kind), key=lambda entity: entity.key))
