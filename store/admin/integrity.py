"""Looks for damage in a store, while the engine works: what the engine of the database says, then what must be true.

Nothing is written. Each database is read as of one instant.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa

from outrider.clock import rfc3339
from outrider.errors import SchemaTooNewError, StoreDamagedError, StoreError
from outrider.model import CycleRecord
from store.admin import check_blocks, check_rows, introspection
from store.admin.check_blocks import Values
from store.migrations import runner
from store.schema import json_codec, metadata
from store.schema.metadata import instant
from store.sql.backend import is_postgresql
from store.sql.database import Database
from store.write_buffer.dropped_cycles import Span

Progress = Callable[[str, float], None]
_MOST = 20  # problems told of one database: who has a thousand needs a backup, not a list
_BLOCKS = 0.9  # share of the time of a metrics database that its blocks take
RESTORE = "Restore a backup: outrider db restore FILE --force"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that must not be, and what to do about it."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class BufferedCycles:
    """Cycles whose decisions stand without values, microseconds: those that wait, and spans that were given up.

    ``trouble`` is a sentence when it is not known what was given up.
    """

    waiting: Collection[int] = ()
    given_up: Collection[Span] = ()
    trouble: str = ""


@dataclass(slots=True)
class Report:
    """What was found in one database. ``revision`` None: it could not be read. ``notes`` are no damage."""

    name: metadata.Database
    place: str
    revision: str | None = None
    bytes: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, message: str, hint: str = RESTORE) -> None:
        """Tell a problem once, unless too many were told."""
        found = Problem(message, hint)
        if len(self.problems) < _MOST and found not in self.problems:
            self.problems.append(found)


def check(
    store_url: str, *, deep: bool, progress: Progress, spooled: Callable[[], BufferedCycles] | None = BufferedCycles
) -> tuple[Report, ...]:
    """A report a database. ``deep`` unpacks every value and record, too.

    ``spooled`` tells which cycles wait for the store in a spool, and which it gave up. None: values are kept
    elsewhere. Raises StoreError when there is no store, StoreAwayError when it does not answer.
    """
    databases = runner.databases_of(store_url, create=False)
    reports = {name: Report(name, database.place) for name, database in databases.items()}
    try:
        if not any(database.exists() for database in databases.values()):
            place = databases["state"].place
            raise StoreError(f"There is no store at {place}.", hint="Check store.url; outrider db upgrade makes one.")
        found = _Found()
        for name, database in databases.items():
            if _is_sound_outside(database, reports[name]):
                _inside(database, reports[name], found, spooled, partial(progress, name), deep=deep)
        if spooled is None:
            reports["metrics"].notes.append("values are kept by the server of store.metrics: they were not looked at")
        elif found.values is not None:
            _half(found.cycles, found.values, reports["metrics"], found.elsewhere)
    finally:
        for database in databases.values():
            database.close()
    return tuple(reports.values())


@dataclass(slots=True)
class _Found:
    """What must be known of both databases to compare them. ``values`` None: the blocks could not be read."""

    cycles: dict[int, str] = field(default_factory=dict)
    elsewhere: BufferedCycles = field(default_factory=BufferedCycles)
    values: Values | None = None


def _is_sound_outside(database: Database, report: Report) -> bool:
    """What can be said without knowing what it holds; True when the rest can be looked at."""
    with _told(report):
        if not _is_known(database, report):
            return False
        with _told(report):
            _pages(database, report)
        _count(database, report)
        return True
    return False


def _inside(
    database: Database, report: Report, found: _Found, spooled: Callable[[], BufferedCycles] | None,
    progress: Callable[[float], None], *, deep: bool,
) -> None:  # fmt: skip
    before = 0.0
    with _told(report), database.reading() as connection:
        if report.name == "state":
            found.cycles = _cycles(connection)
            found.elsewhere = (
                spooled() if spooled else found.elsewhere
            )  # later than the decisions, earlier than the blocks
        else:
            before, blocks = _BLOCKS, partial(_part_of, progress, 0.0, _BLOCKS)
            found.values = check_blocks.check(connection, deep=deep, tell=report.add, progress=blocks)
    with _told(report):
        rows = partial(_part_of, progress, before, 1.0)
        check_rows.check(database, report.name, deep=deep, tell=report.add, progress=rows)


def _part_of(progress: Callable[[float], None], first: float, last: float, share: float) -> None:
    progress(first + (last - first) * share)


@contextmanager
def _told(report: Report) -> Iterator[None]:
    """Damage that keeps us from reading on becomes a problem of the report."""
    try:
        yield
    except StoreDamagedError as error:
        report.add(error.message, error.hint)


def _is_known(database: Database, report: Report) -> bool:
    """True when the database is at this program's revision, so that what must be true of it is known."""
    if not database.exists():
        report.add(f"{database.place} is missing.")
        return False
    report.revision = runner.current(database, report.name)
    if report.revision is None:
        report.add(f"{database.place} holds no store: it does not say its revision.")
        return False
    try:
        runner.refuse_newer(report.name, report.revision, database.place)
    except SchemaTooNewError as error:
        report.add(error.message, error.hint)
        return False
    if report.revision != metadata.HEADS[report.name]:
        _count(database, report)
        _pages(database, report)
        report.notes.append(
            f"revision {report.revision}; outrider db upgrade brings it to {metadata.HEADS[report.name]}"
        )
        return False
    return True


def _count(database: Database, report: Report) -> None:
    """Rows and bytes. A table that cannot be read does not hide the next one."""
    found: Sequence[sa.Table] = ()
    with _told(report), database.reading() as connection:
        found = introspection.of(connection, report.name)
        report.bytes = introspection.size(connection, report.name)
    for table in found:
        with _told(report), database.reading() as connection:
            report.rows[table.name] = introspection.count(connection, table)


# --- what the engine of the database says ---------------------------------------------------------


def _pages(database: Database, report: Report) -> None:
    with database.reading() as connection:
        if is_postgresql(connection):
            _server_pages(connection, report)
            return
        for (said,) in connection.exec_driver_sql(f"PRAGMA integrity_check({_MOST})"):
            if said != "ok":
                report.add(f"{database.place} is damaged: {said.strip().splitlines()[-1]}.")
        orphans: dict[str, int] = {}
        for table, *_ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
            orphans[table] = orphans.get(table, 0) + 1
        for table, rows in orphans.items():
            report.add(f"{database.place}: {rows} rows of {table} name rows of other tables that are not there.")


_AMCHECK = sa.text("SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
                   "WHERE extname = 'amcheck'")  # fmt: skip
_INDEXES = sa.text(
    "SELECT i.indexrelid, i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
    "JOIN pg_am a ON a.oid = c.relam WHERE a.amname = 'btree' AND i.indisvalid "
    "AND i.indrelid = ANY (SELECT to_regclass(quote_ident(name)) FROM unnest(CAST(:names AS text[])) name)"
)


def _server_pages(connection: sa.Connection, report: Report) -> None:
    """Tables and indexes by amcheck, where it is installed and allowed. The rows themselves are read later."""
    home = connection.execute(_AMCHECK).scalar()
    if home is None:
        report.notes.append("indexes were not compared with their tables: CREATE EXTENSION amcheck, then check again")
        return
    quoted = connection.dialect.identifier_preparer.quote(home)
    names = [table.name for table in introspection.of(connection, report.name)]
    for oid, index in connection.execute(_INDEXES, {"names": names}).all():
        _ask_amcheck(connection, report, f"SELECT {quoted}.bt_index_check({int(oid)}, true)", f"index {index}")
    for name in names:
        asked = f"SELECT * FROM {quoted}.verify_heapam(to_regclass(quote_ident('{name}')))"  # noqa: S608 - our own names
        _ask_amcheck(connection, report, asked, f"table {name}")


def _ask_amcheck(connection: sa.Connection, report: Report, asked: str, what: str) -> None:
    try:
        with connection.begin_nested():
            for row in connection.exec_driver_sql(asked):
                if len(row) > 1:  # verify_heapam: block, offset, attribute, what is wrong
                    report.add(f"{report.place}: {what}, block {row[0]}: {row[3]}.")
    except sa.exc.DBAPIError as error:
        code = getattr(error.orig, "sqlstate", None)
        said = str(error.orig).strip().splitlines()[0]
        if code == "42501":
            report.notes.append(f"{what} was not checked by amcheck: {said}")
        elif code in ("XX000", "XX001", "XX002"):
            report.add(f"{report.place}: {what}: {said}.", _REINDEX if what.startswith("index") else RESTORE)
        else:
            raise


_REINDEX = "Run REINDEX DATABASE there, then check again; if that fails, outrider db restore FILE --force"


# --- decisions and their values -------------------------------------------------------------------


def _cycles(connection: sa.Connection) -> dict[int, str]:
    """Instants of the cycles that wrote values, with their ids. Read before the blocks: values are written first."""
    table = metadata.cycle
    found: dict[int, str] = {}
    for row in connection.execute(sa.select(table.c.id, table.c.at_us, table.c.body)):
        try:
            if json_codec.loads(CycleRecord, row.body).signals_written > 0:
                found[row.at_us] = row.id
        except StoreError:
            continue  # told by the look at the rows
    return found


def _half(cycles: Mapping[int, str], values: Values, report: Report, elsewhere: BufferedCycles) -> None:
    """Cycles whose decisions are there and whose values are not, as far back as values are kept."""
    if elsewhere.trouble:
        report.notes.append(f"it is not known which cycles the spool gave up: {elsewhere.trouble}")
    if values.since is None:
        return
    without = sorted(at for at in cycles if at >= values.since and at not in values.instants)
    absent = [at for at in without if at not in elsewhere.waiting]
    if len(without) > len(absent):
        report.notes.append(f"{len(without) - len(absent)} cycles wait for the store in its spool")
    lost = _unexplained(absent, elsewhere.given_up)
    if len(absent) > len(lost):
        report.notes.append(f"{_without_values(sorted(set(absent) - set(lost)))}: the spool gave them up")
    if lost:
        report.add(
            f"{report.place}: {_without_values(lost)}, the last at {rfc3339(instant(lost[-1]))}.",
            "Look for lost writes: the disk's log.",
        )


def _without_values(cycles: Sequence[int]) -> str:
    return f"{len(cycles)} cycles have decisions and no values, the first at {rfc3339(instant(cycles[0]))}"


def _unexplained(absent: Sequence[int], given_up: Collection[Span]) -> list[int]:
    """Those outside of every span that was given up. A span explains no more cycles than it says it has."""
    explained: set[int] = set()
    for span in given_up:
        inside = absent[bisect_left(absent, span.first) : bisect_right(absent, span.last)]
        if len(inside) <= span.cycles:
            explained.update(inside)
    return [at for at in absent if at not in explained]


def as_plain(reports: Collection[Report]) -> list[dict[str, Any]]:
    """The reports for JSON."""
    return [
        {
            "name": one.name,
            "place": one.place,
            "revision": one.revision,
            "bytes": one.bytes,
            "tables": [{"name": name, "rows": rows} for name, rows in one.rows.items()],
            "problems": [{"message": found.message, "hint": found.hint} for found in one.problems],
            "notes": list(one.notes),
        }
        for one in reports
    ]
