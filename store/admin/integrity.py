"""Checks a store for damage while the engine runs: first the database engine's own checks, then our invariants.

Writes nothing. Each database is read in one snapshot.
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
from outrider.text.i18n import fill
from store.admin import check_blocks, check_rows, introspection
from store.admin.check_blocks import Values
from store.migrations import runner
from store.schema import json_codec, metadata
from store.schema.metadata import instant
from store.sql.backend import is_postgresql
from store.sql.database import Database
from store.write_buffer.dropped_cycles import Span

Progress = Callable[[str, float], None]
_MOST = 20  # problems reported per database
_BLOCKS = 0.9  # share of the check of a metrics database that blocks take
RESTORE = "Restore a backup: outrider db restore FILE --force"


@dataclass(frozen=True, slots=True)
class Problem:
    """One violation and its remedy."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class BufferedCycles:
    """Cycles that have decisions and no values, in microseconds: buffered ones, and spans that were dropped.

    ``record_error`` is a sentence if the dropped cycles are not known.
    """

    waiting: Collection[int] = ()
    lost: Collection[Span] = ()
    record_error: str = ""


@dataclass(slots=True)
class Report:
    """Problems of one database. ``revision`` None: it could not be read. ``notes`` do not count as damage."""

    name: metadata.Database
    display_name: str
    revision: str | None = None
    bytes: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, message: str, hint: str = RESTORE) -> None:
        """Adds a problem, up to ``_MOST``."""
        result = Problem(message, hint)
        if len(self.problems) < _MOST and result not in self.problems:
            self.problems.append(result)


def check(
    store_url: str, *, deep: bool, progress: Progress, spooled: Callable[[], BufferedCycles] | None = BufferedCycles
) -> tuple[Report, ...]:
    """One report per database. ``deep`` also unpacks every value and parses every record.

    ``spooled`` returns the cycles that wait in the write buffer and those it dropped. None: values are stored on a
    server. Raises StoreError if there is no store, StoreUnavailableError if it does not respond.
    """
    databases = runner.databases_of(store_url, create=False)
    reports = {name: Report(name, database.display_name) for name, database in databases.items()}
    try:
        if not any(database.exists() for database in databases.values()):
            display_name = databases["state"].display_name
            raise StoreError(
                f"No store found at {display_name}.", hint="Check store.url; outrider db upgrade creates one."
            )
        result = _Facts()
        for name, database in databases.items():
            if _is_sound_outside(database, reports[name]):
                _inside(database, reports[name], result, spooled, partial(progress, name), deep=deep)
        if spooled is None:
            reports["metrics"].notes.append("values are stored on the server of store.metrics and were not checked")
        elif result.values is not None:
            _compare_cycles(result.cycles, result.values, reports["metrics"], result.elsewhere)
    finally:
        for database in databases.values():
            database.close()
    return tuple(reports.values())


@dataclass(slots=True)
class _Facts:
    """Input of the comparison of both databases. ``values`` None: the blocks could not be read."""

    cycles: dict[int, str] = field(default_factory=dict)
    elsewhere: BufferedCycles = field(default_factory=BufferedCycles)
    values: Values | None = None


def _is_sound_outside(database: Database, report: Report) -> bool:
    """Runs the checks that need no knowledge of the contents; True if the rest can run."""
    with _as_problem(report):
        if not _is_known(database, report):
            return False
        with _as_problem(report):
            _pages(database, report)
        _count(database, report)
        return True
    return False


def _inside(
    database: Database, report: Report, result: _Facts, spooled: Callable[[], BufferedCycles] | None,
    progress: Callable[[float], None], *, deep: bool,
) -> None:  # fmt: skip
    before = 0.0
    with _as_problem(report), database.reading() as connection:
        if report.name == "state":
            result.cycles = _cycles(connection)
            # Read after the decisions and before the blocks: cycles move only from the buffer to the blocks.
            result.elsewhere = spooled() if spooled else result.elsewhere
        else:
            before, blocks = _BLOCKS, partial(_part_of, progress, 0.0, _BLOCKS)
            result.values = check_blocks.check(connection, deep=deep, add_problem=report.add, progress=blocks)
    with _as_problem(report):
        rows = partial(_part_of, progress, before, 1.0)
        check_rows.check(database, report.name, deep=deep, add_problem=report.add, progress=rows)


def _part_of(progress: Callable[[float], None], first: float, last: float, share: float) -> None:
    progress(first + (last - first) * share)


@contextmanager
def _as_problem(report: Report) -> Iterator[None]:
    """Turns damage that prevents further reads into a problem of the report."""
    try:
        yield
    except StoreDamagedError as error:
        report.add(error.message, error.hint)


def _is_known(database: Database, report: Report) -> bool:
    """True if the database is at this program's revision, whose invariants are known."""
    if not database.exists():
        report.add(f"{database.display_name} is missing.")
        return False
    report.revision = runner.current(database, report.name)
    if report.revision is None:
        report.add(f"{database.display_name} does not contain a store: it has no revision.")
        return False
    try:
        runner.refuse_newer(report.name, report.revision, database.display_name)
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
    """Counts rows and bytes. An unreadable table does not stop the count of the next one."""
    result: Sequence[sa.Table] = ()
    with _as_problem(report), database.reading() as connection:
        result = introspection.of(connection, report.name)
        report.bytes = introspection.size(connection, report.name)
    for table in result:
        with _as_problem(report), database.reading() as connection:
            report.rows[table.name] = introspection.count(connection, table)


# --- checks of the database engine ----------------------------------------------------------------


def _pages(database: Database, report: Report) -> None:
    with database.reading() as connection:
        if is_postgresql(connection):
            _server_pages(connection, report)
            return
        for (lines,) in connection.exec_driver_sql(f"PRAGMA integrity_check({_MOST})"):
            if lines != "ok":
                report.add(f"{database.display_name} is damaged: {lines.strip().splitlines()[-1]}.")
        orphans: dict[str, int] = {}
        for table, *_ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
            orphans[table] = orphans.get(table, 0) + 1
        for table, rows in orphans.items():
            text = "{name}: {n} [row of {table} refers|rows of {table} refer] to missing rows of other tables."
            report.add(fill(text, name=database.display_name, n=rows, table=table))


_AMCHECK = sa.text("SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
                   "WHERE extname = 'amcheck'")  # fmt: skip
_INDEXES = sa.text(
    "SELECT i.indexrelid, i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
    "JOIN pg_am a ON a.oid = c.relam WHERE a.amname = 'btree' AND i.indisvalid "
    "AND i.indrelid = ANY (SELECT to_regclass(quote_ident(name)) FROM unnest(CAST(:names AS text[])) name)"
)


def _server_pages(connection: sa.Connection, report: Report) -> None:
    """Checks tables and indexes with amcheck, if installed and permitted. The rows themselves are read later."""
    schema = connection.execute(_AMCHECK).scalar()
    if schema is None:
        report.notes.append("indexes were not verified: run CREATE EXTENSION amcheck, then check again")
        return
    quoted = connection.dialect.identifier_preparer.quote(schema)
    names = [table.name for table in introspection.of(connection, report.name)]
    for oid, index in connection.execute(_INDEXES, {"names": names}).all():
        _ask_amcheck(connection, report, f"SELECT {quoted}.bt_index_check({int(oid)}, true)", f"index {index}")
    for name in names:
        query = f"SELECT * FROM {quoted}.verify_heapam(to_regclass(quote_ident('{name}')))"  # noqa: S608 - our own names
        _ask_amcheck(connection, report, query, f"table {name}")


def _ask_amcheck(connection: sa.Connection, report: Report, query: str, subject: str) -> None:
    try:
        with connection.begin_nested():
            for row in connection.exec_driver_sql(query):
                if len(row) > 1:  # verify_heapam returns block, offset, attribute, message
                    report.add(f"{report.display_name}: {subject}, block {row[0]}: {row[3]}.")
    except sa.exc.DBAPIError as error:
        code = getattr(error.orig, "sqlstate", None)
        message = str(error.orig).strip().splitlines()[0]
        if code == "42501":
            report.notes.append(f"{subject} was not checked by amcheck: {message}")
        elif code in ("XX000", "XX001", "XX002"):
            report.add(
                f"{report.display_name}: {subject}: {message}.", _REINDEX if subject.startswith("index") else RESTORE
            )
        else:
            raise


_REINDEX = "Run REINDEX DATABASE there, then check again; if that fails, outrider db restore FILE --force"


# --- decisions and their values -------------------------------------------------------------------


def _cycles(connection: sa.Connection) -> dict[int, str]:
    """Timestamps of the cycles that wrote values, with their ids. Read before the blocks: values are written first."""
    table = metadata.cycle
    cycles: dict[int, str] = {}
    for row in connection.execute(sa.select(table.c.id, table.c.at_us, table.c.body)):
        try:
            if json_codec.loads(CycleRecord, row.body).signals_written > 0:
                cycles[row.at_us] = row.id
        except StoreError:
            continue  # reported by the check of the rows
    return cycles


def _compare_cycles(cycles: Mapping[int, str], values: Values, report: Report, elsewhere: BufferedCycles) -> None:
    """Reports cycles that have decisions and no values, within raw retention."""
    if elsewhere.record_error:
        report.notes.append(f"the cycles that the write buffer dropped are not known: {elsewhere.record_error}")
    if values.since is None:
        return
    without = sorted(at for at in cycles if at >= values.since and at not in values.instants)
    absent = [at for at in without if at not in elsewhere.waiting]
    if len(without) > len(absent):
        waiting = len(without) - len(absent)
        report.notes.append(fill("{n} [cycle waits|cycles wait] in the write buffer", n=waiting))
    lost = _unexplained(absent, elsewhere.lost)
    if len(absent) > len(lost):
        report.notes.append(f"{_without_values(sorted(set(absent) - set(lost)))}: the write buffer dropped them")
    if lost:
        report.add(
            f"{report.display_name}: {_without_values(lost)}, the last at {rfc3339(instant(lost[-1]))}.",
            "Check the kernel log for disk errors: writes were lost.",
        )


def _without_values(cycles: Sequence[int]) -> str:
    text = "{n} [cycle has|cycles have] decisions and no values, the first at {at}"
    return fill(text, n=len(cycles), at=rfc3339(instant(cycles[0])))


def _unexplained(absent: Sequence[int], spans: Collection[Span]) -> list[int]:
    """Cycles outside every dropped span. A span explains at most as many cycles as it counts."""
    explained: set[int] = set()
    for span in spans:
        inside = absent[bisect_left(absent, span.first) : bisect_right(absent, span.last)]
        if len(inside) <= span.cycles:
            explained.update(inside)
    return [at for at in absent if at not in explained]


def as_plain(reports: Collection[Report]) -> list[dict[str, Any]]:
    """The reports as JSON values."""
    return [
        {
            "name": report.name,
            "place": report.display_name,
            "revision": report.revision,
            "bytes": report.bytes,
            "tables": [{"name": name, "rows": rows} for name, rows in report.rows.items()],
            "problems": [{"message": problem.message, "hint": problem.hint} for problem in report.problems],
            "notes": list(report.notes),
        }
        for report in reports
    ]
