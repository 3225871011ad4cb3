"""A store with a year of data from 1,000 GPUs and 1,000 replicas: built once, then copied.

The 48 h of raw values are the simulated day (``benchmarks.fleet_values``) twice. The second time, the entities are
rotated, so that each has the load of another. The store compacts them, rolls them up and fills its hourly tables.

The last whole day of roll-ups is then copied to earlier days: 30 days of ten-minute values and hourly tables, a year
of hourly values. Only the timestamps in each payload header change. The state has 10,000 cycles and a year of resolved
alerts with their messages. A quick run has only GPUs and services, for a week.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from benchmarks.common import cached, print_progress, quick
from benchmarks.engines import Engine
from benchmarks.fleet_values import FleetDay, fleet_day
from outrider.clock import rfc3339
from outrider.model import (
    Alert,
    AlertReason,
    AlertState,
    CycleRecord,
    EntityKind,
    EntityRef,
    Message,
    NotifyReason,
    Priority,
)
from outrider.ports import CycleCommit
from store import migrate
from store.factory import SqlMetricStore, open_metrics, open_state, urls_of
from store.schema import json_codec, metadata
from store.schema.metadata import micros
from store.sql.database import Database
from store.sql.urls import parsed
from store.state.state_rows import KEPT_CYCLES
from store.tsdb import hourly
from store.tsdb.retention import Retention
from store.tsdb.tiers import ONE_HOUR, TEN_MINUTES

STEP = timedelta(seconds=15)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
RAW_HOURS = 48
DAYS = {TEN_MINUTES: 30, ONE_HOUR: 365}
HOURLY_DAYS, QUICK_DAYS = Retention().hourly_tables.days, 7
QUICK_KINDS = (EntityKind.GPU, EntityKind.SERVICE)
PLACES = 48  # six nodes of eight GPUs, nearly a service of replicas
ALERTS_A_DAY, ALERTS_AT_ONCE = 60, 500


def aged(until: datetime) -> Path:
    """Returns the folder of a SQLite store ``store.db`` that ends at ``until``, from the cache or built now."""
    day = fleet_day()
    parameters = [until, day.name, metadata.HEADS, DAYS, HOURLY_DAYS, quick()]
    return cached("aged-store", parameters, [Path(__file__)], lambda folder: build_aged(folder, day, until))


def build_aged(folder: Path, day: FleetDay, until: datetime) -> None:
    """Fills a SQLite store."""
    url = f"sqlite:///{folder}/store.db"
    print_progress("building a store with a year of data; cached for later runs")
    store = open_metrics(urls_of(url)[1])
    try:
        _raw(store, day, until)
        print_progress("rolling up")
        store.prune(until)
    finally:
        store.close()
    database = Database(urls_of(url)[1], "metrics")
    try:
        backdate(database, (until - DAY).replace(hour=0, minute=0, second=0, microsecond=0))
    finally:
        database.close()
    _state(url, day, until)


def _raw(store: SqlMetricStore, day: FleetDay, until: datetime) -> None:
    for number in range(RAW_HOURS):
        start = until - (RAW_HOURS - number) * HOUR
        for kind in QUICK_KINDS if quick() else day.kinds:
            hour = day.hour(kind, start.hour, offset=True)
            moved = PLACES * (number // 24)
            values, status = (np.roll(cells, moved, axis=1).transpose(1, 2, 0) for cells in (hour.values, hour.status))
            times = hour.times - hour.times[0] + start.timestamp()
            store.write_block(kind, times, hour.keys, hour.entities, values, status)
        if number % 6 == 5:
            print_progress(f"{number + 1} of {RAW_HOURS} h of raw values")


def backdate(database: Database, day: datetime) -> None:
    """Copies a day of each roll-up to the days before it, replacing earlier partial days."""
    for tier, days in DAYS.items():
        with database.writing() as connection:
            table = metadata.block
            mine = sa.and_(table.c.tier == tier, table.c.start_us < micros(day))
            connection.execute(sa.delete(table).where(mine))
            query = sa.select(table).where(
                table.c.tier == tier, table.c.start_us >= micros(day), table.c.start_us < micros(day + DAY)
            )
            rows = [dict(row._mapping) for row in connection.execute(query)]  # noqa: SLF001 public API of a row
        assert rows, f"nothing was rolled up to {tier}"
        print_progress(f"{days} days of {tier}")
        for back in range(1, min(days, QUICK_DAYS) if quick() else days):
            with database.writing() as connection:
                connection.execute(sa.insert(metadata.block), list(_moved(rows, back)))
    print_progress(f"{HOURLY_DAYS} days of hourly tables")
    for kind in EntityKind:
        _backdate_hours(database, hourly.table(kind), day)


def _moved(rows: list[dict[str, Any]], days: int) -> Iterator[dict[str, Any]]:
    shift = days * (DAY // timedelta(microseconds=1))
    for row in rows:
        columns = {name: value for name, value in row.items() if name != "id"}
        payload, instants = row["payload"], row["instants"]
        times = np.frombuffer(payload, dtype="<i8", count=instants, offset=_HEAD) - shift
        moved = payload[:_HEAD] + times.tobytes() + payload[_HEAD + 8 * instants :]
        yield columns | {"start_us": row["start_us"] - shift, "end_us": row["end_us"] - shift, "payload": moved}


_HEAD = 16  # magic number and counts of a block precede its timestamps


def _backdate_hours(database: Database, table: sa.Table, day: datetime) -> None:
    others = [column for column in table.c if column.name != "at"]
    with database.writing() as connection:
        connection.execute(sa.delete(table).where(table.c.at < rfc3339(day)))
    for back in range(1, QUICK_DAYS if quick() else HOURLY_DAYS):
        with database.writing() as connection:
            for hour in range(24):
                source = day + hour * HOUR
                moved = sa.literal(rfc3339(source - back * DAY), sa.Text).label("at")
                query = sa.select(*others, moved).where(table.c.at == rfc3339(source))
                connection.execute(sa.insert(table).from_select([*(column.name for column in others), "at"], query))


def _state(url: str, day: FleetDay, until: datetime) -> None:
    """Writes the cycles that a state store keeps, and a year of resolved alerts."""
    print_progress("state")
    random.seed(7)
    state, replicas = open_state(urls_of(url)[0]), day.entities(EntityKind.REPLICA)
    try:
        for first in range(0, 365 * ALERTS_A_DAY, ALERTS_AT_ONCE):
            began = until - timedelta(days=365 * (1 - first / (365 * ALERTS_A_DAY)))
            alerts = tuple(_resolved(first + number, began, replicas) for number in range(ALERTS_AT_ONCE))
            messages = tuple(
                Message(alert.fingerprint, "im", NotifyReason.OPENED, alert.priority, None, "t", "b" * 500, began)
                for alert in alerts[::5]
            )
            state.commit(CycleCommit(_cycle(began), alerts=alerts, messages=messages))
    finally:
        state.close()
    database = Database(urls_of(url)[0], "state")
    try:
        with database.writing() as connection:
            connection.execute(sa.update(metadata.message).values(status="delivered", ended_at_us=micros(until)))
            connection.execute(sa.delete(metadata.cycle))
            records = [_cycle(until - number * STEP) for number in range(KEPT_CYCLES, 0, -1)]
            rows = [
                {"id": record.id, "at_us": micros(record.at), "body": json_codec.dumps(record)} for record in records
            ]
            connection.execute(sa.insert(metadata.cycle), rows)
    finally:
        database.close()


def _cycle(at: datetime) -> CycleRecord:
    return CycleRecord(rfc3339(at), at, 2.0, 1125, 1125, 258_000, 0, 0, 0)


def _resolved(number: int, began: datetime, replicas: tuple[EntityRef, ...]) -> Alert:
    ends = began + timedelta(minutes=random.randint(2, 90))
    return Alert(
        f"aged-{number}", "engine-slow", Priority.P2, random.choice(replicas), AlertState.RESOLVED,
        AlertReason.CONDITION_GONE, began, ends, ends_at=ends,
    )  # fmt: skip


def copy_into(folder: Path, engine: Engine) -> None:
    """Copies the store of ``folder`` into an engine's empty store."""
    assert engine.url is not None
    if engine.name == "sqlite":
        for source, target in zip(urls_of(f"sqlite:///{folder}/store.db"), urls_of(engine.url), strict=True):
            shutil.copyfile(str(sa.make_url(source).database), str(sa.make_url(target).database))
        return
    print_progress("copying the year of data into PostgreSQL")
    migrate.upgrade(engine.url)
    open_metrics(engine.url).close()  # creates the tables of the signal catalog
    for source in urls_of(f"sqlite:///{folder}/store.db"):
        _into_server(sa.create_engine(parsed(source)), sa.create_engine(parsed(engine.url)))


def _into_server(source: sa.Engine, target: sa.Engine) -> None:
    """Copies every row of every table except the schema revision; sequences then continue after the last row."""
    tables, there = sa.MetaData(), sa.MetaData()
    tables.reflect(source)
    there.reflect(target)
    names = [name for name in there.tables if name in tables.tables and name not in metadata.VERSION_TABLES.values()]
    with source.connect() as giving, target.begin() as taking:
        taking.execute(sa.text("SET session_replication_role = replica"))  # rows come in any order
        for name in names:
            taking.execute(sa.text(f"TRUNCATE {name} CASCADE"))
        for name in names:
            rows = giving.execution_options(yield_per=200).execute(sa.select(tables.tables[name])).mappings()
            for part in rows.partitions(200):
                taking.execute(sa.insert(there.tables[name]), [dict(row) for row in part])
            if "id" in there.tables[name].c and isinstance(there.tables[name].c.id.type, sa.Integer):
                number = f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), coalesce(max(id), 1)) FROM {name}"
                taking.execute(sa.text(number))
    source.dispose()
    with target.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM ANALYZE"))
    target.dispose()
