"""Disk usage of a metrics database, and the release of free pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from outrider.model import EntityKind
from store.schema.metadata import block, cohort, entity, event
from store.sql.backend import is_postgresql
from store.tsdb import hourly

_SPARE_BYTES: Final = 64 << 20  # room for an hour of cycles, which is needed again soon
_SPARE_RATIO: Final = 0.1
_PAGES_AT_ONCE: Final = 256  # 4 MB: about 20 ms
_ROW_BYTES: Final = 120  # overhead of a row on a server: header, line pointer, entries of two indexes
_SAMPLE: Final = 200  # rows sampled for the average width
_ESTIMATE: Final = sa.text("SELECT reltuples FROM pg_class WHERE oid = to_regclass(quote_ident(:name))")


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes in use, and free bytes of the file; ``free`` is 0 on a server, which manages its own space."""

    used: int
    free: int

    @property
    def surplus(self) -> int:
        """Free bytes beyond normal fluctuation."""
        return max(0, self.free - max(_SPARE_BYTES, int(_SPARE_RATIO * self.used)))


def measure(connection: sa.Connection, *, exact: bool = False) -> Space:
    """Current usage. On PostgreSQL the size of live rows: deleted rows do not count, vacuumed or not.

    ``exact`` counts the rows of the wide tables there, some hundred ms for millions, instead of the server's estimate.
    """
    if is_postgresql(connection):
        return Space(_of_blocks(connection) + sum(_of_rows(connection, table, exact=exact) for table in _others()), 0)
    page, pages, free = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("page_size", "page_count", "freelist_count")
    )
    return Space((pages - free) * page, free * page)


def _others() -> list[sa.Table]:
    return [*map(hourly.table, EntityKind), event, cohort, entity]


def _of_blocks(connection: sa.Connection) -> int:
    payloads = sa.func.coalesce(sa.func.sum(sa.func.length(block.c.payload)), 0)
    size, rows = connection.execute(sa.select(payloads, sa.func.count())).one()
    return int(size) + _ROW_BYTES * int(rows)


def _of_rows(connection: sa.Connection, table: sa.Table, *, exact: bool) -> int:
    """Live rows times their sampled width."""
    few = sa.select(table).limit(_SAMPLE).subquery("few")
    width = sa.select(sa.func.avg(sa.func.pg_column_size(sa.literal_column("few.*")))).select_from(few)
    bytes_of_row: int | None = connection.execute(width).scalar()
    if bytes_of_row is None:
        return 0
    rows = -1 if exact else int(connection.execute(_ESTIMATE, {"name": table.name}).scalar_one())
    if rows < 0:  # the table was never analyzed
        rows = int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
    return rows * (_ROW_BYTES + int(bytes_of_row))


def shrinks(connection: sa.Connection) -> bool:
    """True for a file that supports incremental vacuum."""
    if is_postgresql(connection):
        return False
    return int(connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one()) == 2  # incremental


def give_back(connection: sa.Connection) -> None:
    """Releases some free pages of the file, in the caller's transaction."""
    for _ in range(_PAGES_AT_ONCE):  # the driver steps once, which is one page, whatever the number
        connection.exec_driver_sql("PRAGMA incremental_vacuum(1)")
