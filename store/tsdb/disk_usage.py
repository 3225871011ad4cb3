"""How much room a metrics database takes, and giving back what it no longer needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from outrider.model import EntityKind
from store.schema.metadata import block, cohort, entity, event
from store.sql.backend import is_postgresql
from store.tsdb import hourly

_SPARE_BYTES: Final = 64 << 20  # an hour of cycles comes and goes: room that is needed again soon is not given back
_SPARE_RATIO: Final = 0.1
_PAGES_AT_ONCE: Final = 256  # 4 MB: some 20 ms
_ROW_BYTES: Final = 120  # of a row on a server beside its values: header, line pointer, entries of two indexes
_SAMPLE: Final = 200  # rows whose width stands for that of all
_ESTIMATE: Final = sa.text("SELECT reltuples FROM pg_class WHERE oid = to_regclass(quote_ident(:name))")


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes in use, and bytes of the file that hold nothing; ``free`` is 0 on a server, which looks after its own."""

    used: int
    free: int

    @property
    def surplus(self) -> int:
        """Free bytes beyond what comes and goes by itself."""
        return max(0, self.free - max(_SPARE_BYTES, int(_SPARE_RATIO * self.used)))


def measure(connection: sa.Connection, *, exact: bool = False) -> Space:
    """What is in use now. On PostgreSQL what living rows take: what was deleted counts no more, vacuumed or not.

    There ``exact`` counts the rows of the wide tables, some hundred ms for millions, instead of asking for the
    server's estimate.
    """
    if is_postgresql(connection):
        return Space(_of_blocks(connection) + sum(_of_rows(connection, one, exact=exact) for one in _others()), 0)
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
    """Living rows times the width of some of them."""
    few = sa.select(table).limit(_SAMPLE).subquery("few")
    width = sa.select(sa.func.avg(sa.func.pg_column_size(sa.literal_column("few.*")))).select_from(few)
    bytes_of_row: int | None = connection.execute(width).scalar()
    if bytes_of_row is None:
        return 0
    rows = -1 if exact else int(connection.execute(_ESTIMATE, {"name": table.name}).scalar_one())
    if rows < 0:  # nobody has looked at the table yet
        rows = int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
    return rows * (_ROW_BYTES + int(bytes_of_row))


def shrinks(connection: sa.Connection) -> bool:
    """True for a file that can give room back bit by bit: one that was made so."""
    if is_postgresql(connection):
        return False
    return int(connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one()) == 2  # incremental


def give_back(connection: sa.Connection) -> None:
    """Cut some free pages off the file, inside a transaction of their own."""
    for _ in range(_PAGES_AT_ONCE):  # the driver steps once, which is a page, whatever number one asks for
        connection.exec_driver_sql("PRAGMA incremental_vacuum(1)")
