"""Status of a metrics database: disk usage, pending maintenance, retention cuts, rejected values."""

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
    """Reason for rejecting values."""

    OLDER_THAN_KEPT = "older_than_kept"  # older than all retention
    ROLLED_UP_ALREADY = "rolled_up_already"  # the span has a value, and its finer values are deleted


@dataclass(frozen=True, slots=True)
class Condition:
    """``waiting`` counts pending spans by work, including the current hour.

    ``kept_from`` is the newest cut of each tier in unix seconds.
    """

    space: Space
    waiting: Mapping[str, int]
    kept_from: Mapping[str, float]
    refused: Mapping[str, int]


def read(connection: sa.Connection) -> Condition:
    """The current status."""
    waiting = sa.select(due.c.work, sa.func.count().label("many")).group_by(due.c.work)
    cuts = sa.select(kept_from.c.tier, sa.func.max(kept_from.c.start_us).label("at")).group_by(kept_from.c.tier)
    return Condition(
        disk_usage.measure(connection),
        {row.work: int(row.many) for row in connection.execute(waiting)},
        {row.tier: row.at / 1e6 for row in connection.execute(cuts)},
        refusals(connection),
    )


def refusals(connection: sa.Connection) -> dict[str, int]:
    """Rejected late values since the database was created, by reason."""
    return {row.reason: int(row.cells) for row in connection.execute(sa.select(refused))}


def refuse(connection: sa.Connection, reason: str, cells: int) -> None:
    """Counts rejected values."""
    if cells:
        counted = insert(connection, refused).values(reason=str(reason), cells=cells)
        more = {"cells": refused.c.cells + cells}
        connection.execute(counted.on_conflict_do_update(index_elements=[refused.c.reason], set_=more))
