"""How a metrics database stands: room, what waits for upkeep, what retention left, what came too late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from store.schema.metadata import due, kept_from, refused
from store.sql.backend import insert
from store.tsdb import disk_usage
from store.tsdb.disk_usage import Space


class LateSamples(StrEnum):
    """Why values were refused."""

    OLDER_THAN_KEPT = "older_than_kept"  # retention has left nothing of their time
    ROLLED_UP_ALREADY = "rolled_up_already"  # their span has a value, and its finer values are gone


@dataclass(frozen=True, slots=True)
class Condition:
    """``waiting`` counts spans by work, the hour at hand among them.

    ``kept_from`` is the newest cut of each tier in unix seconds.
    """

    space: Space
    waiting: Mapping[str, int]
    kept_from: Mapping[str, float]
    refused: Mapping[str, int]


def read(connection: sa.Connection) -> Condition:
    """As it is at this instant."""
    waiting = sa.select(due.c.work, sa.func.count().label("many")).group_by(due.c.work)
    cuts = sa.select(kept_from.c.tier, sa.func.max(kept_from.c.start_us).label("at")).group_by(kept_from.c.tier)
    return Condition(
        disk_usage.measure(connection),
        {row.work: int(row.many) for row in connection.execute(waiting)},
        {row.tier: row.at / 1e6 for row in connection.execute(cuts)},
        refusals(connection),
    )


def refusals(connection: sa.Connection) -> dict[str, int]:
    """Values that came too late since the database was made, by reason."""
    return {row.reason: int(row.cells) for row in connection.execute(sa.select(refused))}


def refuse(connection: sa.Connection, reason: str, cells: int) -> None:
    """Count values that are not kept."""
    if cells:
        counted = insert(connection, refused).values(reason=str(reason), cells=cells)
        more = {"cells": refused.c.cells + cells}
        connection.execute(counted.on_conflict_do_update(index_elements=[refused.c.reason], set_=more))
