"""How much room a metrics database takes, and giving back what it no longer needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from store.backend import is_postgresql
from store.schema import block

_SPARE_BYTES: Final = 64 << 20  # an hour of cycles comes and goes: room that is needed again soon is not given back
_SPARE_RATIO: Final = 0.1
_PAGES_AT_ONCE: Final = 256  # 4 MB: some 20 ms


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes in use, and bytes of the file that hold nothing; ``free`` is 0 on a server, which looks after its own."""

    used: int
    free: int

    @property
    def surplus(self) -> int:
        """Free bytes beyond what comes and goes by itself."""
        return max(0, self.free - max(_SPARE_BYTES, int(_SPARE_RATIO * self.used)))


def measure(connection: sa.Connection) -> Space:
    """What is in use now. On PostgreSQL the payloads: what was deleted counts no more before it is vacuumed."""
    if is_postgresql(connection):
        asked = sa.select(sa.func.coalesce(sa.func.sum(sa.func.length(block.c.payload)), 0))
        return Space(int(connection.execute(asked).scalar_one()), 0)
    page, pages, free = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("page_size", "page_count", "freelist_count")
    )
    return Space((pages - free) * page, free * page)


def shrinks(connection: sa.Connection) -> bool:
    """True for a file that can give room back bit by bit: one that was made so."""
    if is_postgresql(connection):
        return False
    return int(connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one()) == 2  # incremental


def give_back(connection: sa.Connection) -> None:
    """Cut some free pages off the file, inside a transaction of their own."""
    for _ in range(_PAGES_AT_ONCE):  # the driver steps once, which is a page, whatever number one asks for
        connection.exec_driver_sql("PRAGMA incremental_vacuum(1)")
