"""What is damaged is found and named, in files and on a server; what is whole is called whole."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from outrider.errors import StoreError, StoreUnavailableError
from outrider.model import EntityKind, SampleBatch
from store import migrate
from store.admin import check_blocks, check_rows
from store.admin import integrity as checks
from store.factory import SqlMetricStore, open_metrics, open_state, urls_of
from store.schema import metadata
from store.sql.database import Database
from store.tsdb.retention import DeletionReason, Retention
from store.write_buffer.dropped_cycles import Span
from tests.store import cycle_writer, full_store
from tests.support import postgres

WRITER = Path(__file__).parent.with_name("cycle_writer.py")


def look(url: str, *, deep: bool = False, **more: Any) -> dict[str, checks.Report]:
    return {one.name: one for one in checks.check(url, deep=deep, progress=lambda *_: None, **more)}


def change(url: str, name: metadata.Database, *statements: Any, **values: object) -> None:
    database = Database(urls_of(url)[name == "metrics"], name)
    try:
        with database.writing() as connection:
            for statement in statements:
                connection.execute(sa.text(statement) if isinstance(statement, str) else statement, values)
    finally:
        database.close()


def block_of(url: str, where: str = "instants > 1") -> Any:
    database = Database(urls_of(url)[1], "metrics")
    try:
        with database.reading() as connection:
            return connection.execute(sa.text(f"SELECT * FROM block WHERE {where} ORDER BY id LIMIT 1")).one()
    finally:
        database.close()


def said(report: checks.Report) -> str:
    return "\n".join(problem.message for problem in report.problems)


@pytest.fixture
def filled(store_url: str) -> str:
    full_store.fill(store_url, count=62)
    return store_url


@pytest.mark.slow
@pytest.mark.parametrize("deep", [False, True])
def test_a_whole_store_has_no_problem_and_every_row_is_counted(filled: str, deep: bool) -> None:
    before = full_store.stored(filled)
    found = look(filled, deep=deep)
    assert [one.problems for one in found.values()] == [[], []]
    counted = {name: rows for one in found.values() for name, rows in one.rows.items()}
    assert counted == {name: len(rows) for name, rows in before.items()}
    assert {name: one.revision for name, one in found.items()} == metadata.HEADS
    assert all(one.bytes > 10_000 for one in found.values())
    assert full_store.stored(filled) == before
    assert all("amcheck" in one.notes[0] for one in found.values() if filled.startswith("postgresql"))


@pytest.mark.slow
def test_a_store_at_work_is_checked_without_a_false_alarm(store_url: str) -> None:
    command = [sys.executable, str(WRITER), store_url]  # as fast as it can, with an upkeep of its own
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        drain = threading.Thread(target=writer.stdout.read)
        drain.start()
        store = open_metrics(urls_of(store_url)[1])
        until = time.monotonic() + 20.0  # there is more to look at every time
        for number in range(4):
            if number and time.monotonic() > until:
                break
            store.prune(full_store.T0 + timedelta(days=1))
            assert [said(one) for one in look(store_url, deep=True).values()] == ["", ""]
        store.close()
        writer.kill()
        drain.join()


def test_a_missing_store_is_an_error_and_is_not_created(store_url: str) -> None:
    if store_url.startswith("sqlite"):
        with pytest.raises(StoreError, match="No store found at") as caught:
            look(store_url)
        assert "db upgrade" in caught.value.hint
        assert not Path(store_url.removeprefix("sqlite:///")).exists()
    else:
        assert all("does not contain a store" in said(one) for one in look(store_url).values())


@pytest.mark.slow
def test_a_newer_revision_is_a_problem_and_an_older_one_a_note(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(filled, "state", "UPDATE state_revision SET version_num = 's9999'")
    found = look(filled)
    assert "written by a newer outrider" in said(found["state"])
    assert found["metrics"].problems == []
    change(filled, "state", "UPDATE state_revision SET version_num = 's0001'")
    monkeypatch.setitem(metadata.HEADS, "state", "s0002")
    found = look(filled)
    assert found["state"].problems == []
    assert "db upgrade" in found["state"].notes[-1]


# --- damage of files ------------------------------------------------------------------------------


def file_of(url: str, name: str) -> Path:
    return Path(urls_of(url)[name == "metrics"].removeprefix("sqlite:///"))


@pytest.mark.parametrize("name", ["state", "metrics"])
def test_a_corrupted_file_is_named_with_the_command_that_restores_it(sqlite_url: str, name: str) -> None:
    full_store.fill(sqlite_url, count=62)
    path = file_of(sqlite_url, name)
    with path.open("r+b") as file:
        for page in range(3, 9):
            file.seek(16_384 * page)
            file.write(b"\xa5" * 4_000)
    found = look(sqlite_url)
    assert str(path) in said(found[name])
    assert "damaged" in said(found[name])
    assert any("outrider db restore FILE --force" in problem.hint for problem in found[name].problems)
    assert found["metrics" if name == "state" else "state"].problems == []


def test_a_file_that_is_no_database_and_one_that_is_missing(sqlite_url: str) -> None:
    full_store.fill(sqlite_url, count=2)
    file_of(sqlite_url, "state").write_bytes(b"hello " * 10_000)
    file_of(sqlite_url, "metrics").unlink()
    found = look(sqlite_url)
    assert "is not a SQLite database" in said(found["state"])
    assert "outrider-metrics.db is missing" in said(found["metrics"])


# --- damage on a server ---------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[postgres.Server]:
    try:
        with postgres.server(*postgres.UNSYNCED) as found:
            yield found
    except postgres.MissingError as error:
        pytest.skip(f"missing: {error}")


def spoil(server: postgres.Server, database: str, relation: str, at: int) -> None:
    path = server.sql(f"SELECT pg_relation_filepath('{relation}')", database)
    server.stop()
    with (server.folder / "data" / path).open("r+b") as file:
        file.seek(at)
        file.write(b"\xa5" * 512)
    server.start()


def test_a_page_that_a_server_cannot_read_is_found_and_the_rest_is_looked_at(own_server: postgres.Server) -> None:
    with own_server.database() as url:
        full_store.fill(url, count=62)
        spoil(own_server, url.rpartition("/")[2], "audit", 0)
        found = look(url)
        assert "damaged" in said(found["state"])
        assert any("outrider db restore FILE --force" in problem.hint for problem in found["state"].problems)
        assert "audit" not in found["state"].rows
        assert found["state"].rows["startup"] == 1
        assert found["metrics"].problems == []
        toast = own_server.sql(
            "SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'block'", url.rpartition("/")[2]
        )
        spoil(own_server, url.rpartition("/")[2], toast, 8192)
        assert "damaged" in said(look(url)["metrics"])
        own_server.stop()
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            look(url)
        own_server.start()


def test_amcheck_compares_indexes_with_their_tables(own_server: postgres.Server) -> None:
    with own_server.database() as url:
        full_store.fill(url, count=62)
        database = url.rpartition("/")[2]
        own_server.sql("CREATE EXTENSION amcheck", database)
        assert [(one.problems, one.notes) for one in look(url).values()] == [([], []), ([], [])]
        own_server.sql("CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader", database)
        poor = url.replace("outrider@", "reader@")
        assert "not checked by amcheck" in look(poor)["state"].notes[0]
        own_server.sql("UPDATE pg_index SET indisready = false WHERE indexrelid = 'audit_by_time'::regclass", database)
        own_server.sql(
            "INSERT INTO audit (at_us, event, subject, reason, cycle, by, body) VALUES (1,'a','b','c','d','e','{}')",
            database,
        )
        own_server.sql("UPDATE pg_index SET indisready = true WHERE indexrelid = 'audit_by_time'::regclass", database)
        problem = look(url)["state"].problems[0]
        assert "audit_by_time" in problem.message
        assert "REINDEX" in problem.hint


# --- what must be true of blocks ------------------------------------------------------------------


@pytest.mark.slow
def test_a_payload_that_is_cut_off_or_bent_is_found(filled: str) -> None:
    row = block_of(filled)
    for payload, words in (
        (row.payload[:-1], "bytes; its index says"),
        (b"XXXX" + row.payload[4:], "unknown format"),
        (row.payload[:10], "cannot be unpacked"),
        (b"", "cannot be unpacked"),
    ):
        change(filled, "metrics", "UPDATE block SET payload = :payload WHERE id = :id", payload=payload, id=row.id)
        problem = look(filled)["metrics"].problems[0]
        assert f"Block {row.id} (gpu, raw, from 2026-03-01T12:00:00+00:00)" in problem.message
        assert words in problem.message
        assert "outrider db restore FILE" in problem.hint


def test_bent_values_are_found_by_a_deep_look(filled: str) -> None:
    row = block_of(filled)
    payload = row.payload[:-20] + b"\0" * 20
    change(filled, "metrics", "UPDATE block SET payload = :payload WHERE id = :id", payload=payload, id=row.id)
    assert look(filled)["metrics"].problems == []
    assert f"Block {row.id}" in said(look(filled, deep=True)["metrics"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("instants", 7, "60 timestamps; its row says 7"),
        ("end_us", 1, "other timestamps"),
        ("cohort_id", 2, "40 entities; its list has 5"),
        ("keyset_id", 2, "other columns than its list"),
    ],
)
def test_a_row_that_does_not_fit_its_block(filled: str, column: str, value: int, words: str) -> None:
    row = block_of(filled)
    change(filled, "metrics", f"UPDATE block SET {column} = :value WHERE id = :id", value=value, id=row.id)
    assert words in said(look(filled)["metrics"])


@pytest.mark.slow
def test_a_list_that_is_bent_or_names_what_is_not_there(filled: str) -> None:
    change(
        filled,
        "metrics",
        "UPDATE cohort SET members = :members WHERE id = 1",
        members=np.arange(3, dtype="<i4").tobytes(),
    )
    assert "cohort 1 of the metrics is damaged" in said(look(filled)["metrics"])
    change(filled, "metrics", "DELETE FROM signal WHERE key = 'hw_accel_power_watts'")
    assert "refers to 1 missing" in said(look(filled)["metrics"])
    change(filled, "metrics", "UPDATE entity SET kind = 'node' WHERE kind = 'replica'")
    assert "which is not a valid node key" in said(look(filled)["metrics"])


def test_a_list_that_is_gone(sqlite_url: str) -> None:
    full_store.fill(sqlite_url, count=62)
    with contextlib.closing(sqlite3.connect(file_of(sqlite_url, "metrics"), isolation_level=None)) as plain:
        plain.execute("DELETE FROM cohort WHERE id = 2")
    found = said(look(sqlite_url)["metrics"])
    assert "rows of block refer to" in found
    assert "a missing or damaged list of entities" in found


@pytest.mark.slow
def test_two_blocks_that_hold_the_same_cells_are_found(filled: str) -> None:
    row = block_of(filled)
    change(
        filled,
        "metrics",
        "INSERT INTO block (tier, kind, start_us, end_us, instants, cohort_id, keyset_id, payload) "
        f"SELECT tier, kind, start_us, end_us, instants, cohort_id, keyset_id, payload FROM block WHERE id = {row.id}",
    )
    (problem,) = look(filled)["metrics"].problems
    assert f"Blocks {row.id} and " in problem.message
    assert "hold the same entity's column" in problem.message


def test_blocks_of_other_entities_signals_and_hidden_ones_may_lie_side_by_side(store_url: str) -> None:
    store = open_metrics(urls_of(store_url)[1])
    times = full_store.T0.timestamp() + 60.0 * np.arange(30)
    values = np.ones((1, 30, 1))
    for gpu in full_store.GPUS[:8]:
        for key in (full_store.POWER, full_store.ECC):
            store.write_block(EntityKind.GPU, times, [key], [gpu], values)
    store.write_block(EntityKind.GPU, times + 900, [full_store.POWER], full_store.GPUS[8:10], np.ones((2, 30, 1)))
    store.close()
    assert look(store_url, deep=True)["metrics"].problems == []
    store = open_metrics(urls_of(store_url)[1])
    store.write_block(EntityKind.GPU, times + 900, [full_store.POWER], full_store.GPUS[9:11], np.ones((2, 30, 1)))
    store.close()
    assert "hold the same entity's column" in said(look(store_url)["metrics"])


def test_every_record_that_is_kept_as_json_is_looked_at() -> None:
    kept = {
        table.name for base in (metadata.metrics, metadata.state) for table in base.sorted_tables if "body" in table.c
    }
    assert set(check_rows.RECORDS) == kept


def test_rows_in_progress_of_maintenance_do_not_overlap(filled: str) -> None:
    row = block_of(filled)
    names = "tier, kind, start_us, end_us, instants, cohort_id, keyset_id, payload"
    twice = f"INSERT INTO block ({names}) SELECT {names} FROM block WHERE id = {row.id}"
    change(filled, "metrics", twice, "INSERT INTO hidden (block_id) SELECT max(id) FROM block")
    assert look(filled)["metrics"].problems == []


def test_overlaps_are_those_that_a_look_at_every_pair_finds() -> None:
    generator = np.random.default_rng(1)
    for _ in range(200):
        count = int(generator.integers(2, 12))
        starts = np.sort(generator.integers(0, 30, count))
        ends = starts + generator.integers(0, 6, count)
        members = {number: np.unique(generator.integers(0, 12, 2)).astype(np.int32) for number in range(count)}
        columns = {number: np.unique(generator.integers(0, 3, 1)).astype(np.int32) for number in range(count)}
        seen = check_blocks._Seen(groups={("gpu", "raw"): 0})
        for number in range(count):
            for name, value in zip(
                seen.numbers, (0, number, starts[number], ends[number], number, number), strict=True
            ):
                seen.numbers[name].append(int(value))
        told: list[str] = []
        check_blocks._overlaps(seen, check_blocks._Known(dict(members), {}, dict(columns)), told.append)
        expected = any(
            starts[b] <= ends[a] and set(members[a]) & set(members[b]) and set(columns[a]) & set(columns[b])
            for a in range(count)
            for b in range(a + 1, count)
        )
        assert bool(told) == expected


# --- decisions ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cycle_of_which_only_the_decisions_are_there(filled: str) -> None:
    database = Database(urls_of(filled)[1], "metrics")
    at = int((full_store.T0.timestamp() + 60 * 60) * 1_000_000)
    with database.writing() as connection:
        connection.execute(sa.delete(metadata.block).where(metadata.block.c.end_us == at))
    database.close()
    (problem,) = look(filled)["metrics"].problems
    assert "1 cycles have decisions and no values, the first at 2026-03-01T13:00:00Z" in problem.message
    found = look(filled, spooled=lambda: checks.BufferedCycles([at]))["metrics"]
    assert (found.problems, "wait in the write buffer" in found.notes[-1]) == ([], True)
    found = look(filled, spooled=lambda: checks.BufferedCycles(lost=[Span(at - 15, at, 2)]))["metrics"]
    assert (found.problems, "the write buffer dropped them" in found.notes[-1]) == ([], True)
    for other in (Span(0, at - 1, 1000), Span(at + 1, at + 9, 1000), Span(0, at, 0)):
        found = look(filled, spooled=lambda other=other: checks.BufferedCycles(lost=[other]))["metrics"]
        assert "1 cycles have decisions and no values" in said(found)
    found = look(filled, spooled=lambda: checks.BufferedCycles(record_error="dropped.json cannot be read."))["metrics"]
    assert "dropped.json cannot be read" in found.notes[-1]
    assert "1 cycles have decisions and no values" in said(found)


def cycles(store_url: str, count: int) -> tuple[SqlMetricStore, Callable[[int], None]]:
    """A store with so many cycles, minutes and decisions; and what writes the values of one without its decisions."""
    state, metrics = open_state(urls_of(store_url)[0]), open_metrics(urls_of(store_url)[1])
    status = np.zeros((len(cycle_writer.GPUS), len(cycle_writer.KEYS)), dtype=np.uint8)

    def write(number: int) -> None:
        at, values = cycle_writer.instant(number), np.full(status.shape, float(number))
        metrics.write(
            at, [SampleBatch("dcgm", at, EntityKind.GPU, cycle_writer.KEYS, cycle_writer.GPUS, values, status)]
        )

    for number in range(count):
        write(number)
        state.commit(cycle_writer.commit_of(number, cycle_writer.instant(number)))
    state.close()
    return metrics, write


@pytest.mark.slow
def test_a_late_cycle_before_the_cut_does_not_ask_for_those_that_retention_took(store_url: str) -> None:
    metrics, write = cycles(store_url, 5 * cycle_writer.AN_HOUR)
    retention, now = Retention(raw=timedelta(hours=2)), cycle_writer.instant(5 * cycle_writer.AN_HOUR + 5)
    assert metrics.maintain(now, retention).deletions.rows["raw", DeletionReason.AGE] > 0
    assert said(look(store_url)["metrics"]) == ""
    write(65)
    assert said(look(store_url)["metrics"]) == ""
    for minute in range(3):
        metrics.maintain(now + timedelta(minutes=minute), retention)
        assert said(look(store_url)["metrics"]) == ""
    metrics.close()
    lost = int(cycle_writer.instant(4 * cycle_writer.AN_HOUR + 30).timestamp() * 1e6)
    change(store_url, "metrics", "DELETE FROM block WHERE tier = 'raw' AND end_us >= :at", at=lost)
    change(store_url, "metrics", "DELETE FROM hidden WHERE block_id NOT IN (SELECT id FROM block)")
    assert "cycles have decisions and no values" in said(look(store_url)["metrics"]), "what was not cut must be there"


def test_rows_that_no_read_sees_are_no_values(store_url: str) -> None:
    metrics, _ = cycles(store_url, 10)
    metrics.close()
    change(store_url, "metrics", "INSERT INTO hidden (block_id) SELECT max(id) - 1 FROM block")
    assert "1 cycles have decisions and no values" in said(look(store_url)["metrics"])


@pytest.mark.slow
def test_records_that_cannot_be_read_are_counted_and_the_first_is_named(filled: str) -> None:
    change(filled, "state", "UPDATE alert SET body = 'oops' WHERE fingerprint IN ('f5', 'f10')")
    change(filled, "state", "UPDATE incident SET body = '{}' WHERE id = 'i5'")
    change(filled, "state", "UPDATE document SET payload = :payload WHERE area = 'detector'", payload=b"oops")
    change(filled, "metrics", "UPDATE event SET body = '[]' WHERE dedup_key = 'k20'")
    assert "Table alert: 2 rows cannot be read, the first is f10" in said(look(filled)["state"])
    found = look(filled, deep=True)
    for words in (
        "Table alert: 2 rows",
        "Table incident: 1 rows cannot be read, the first is i5",
        "Table document: 1 rows",
    ):
        assert words in said(found["state"])
    assert "Table event: 1 rows" in said(found["metrics"])


def test_a_thousand_problems_are_reported_as_twenty(sqlite_url: str) -> None:
    full_store.fill(sqlite_url, count=30)
    change(sqlite_url, "metrics", "UPDATE block SET instants = 9999")
    assert len(look(sqlite_url)["metrics"].problems) == 20


def test_what_upgrade_alone_makes(store_url: str) -> None:
    migrate.upgrade(store_url)
    database = Database(urls_of(store_url)[1], "metrics")
    with contextlib.closing(database), database.reading() as connection:
        assert sa.inspect(connection).has_table("latest_gpu")
    assert [one.problems for one in look(store_url, deep=True).values()] == [[], []]
