"""The check names damage in files and on a server, and reports nothing for an intact store."""

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


def check(url: str, *, deep: bool = False, **more: Any) -> dict[str, checks.Report]:
    return {report.name: report for report in checks.check(url, deep=deep, progress=lambda *_: None, **more)}


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


def messages(report: checks.Report) -> str:
    return "\n".join(problem.message for problem in report.problems)


@pytest.mark.slow
@pytest.mark.parametrize("deep", [False, True])
def test_an_intact_store_has_no_problem_and_every_row_is_counted(filled: str, deep: bool) -> None:
    before = full_store.all_rows(filled)
    reports = check(filled, deep=deep)
    assert [report.problems for report in reports.values()] == [[], []]
    counted = {name: rows for report in reports.values() for name, rows in report.rows.items()}
    assert counted == {name: len(rows) for name, rows in before.items()}
    assert {name: report.revision for name, report in reports.items()} == metadata.HEADS
    assert all(report.bytes > 10_000 for report in reports.values())
    assert full_store.all_rows(filled) == before
    assert all("amcheck" in report.notes[0] for report in reports.values() if filled.startswith("postgresql"))


@pytest.mark.slow
def test_a_store_in_use_is_checked_without_a_false_alarm(store_url: str) -> None:
    command = [sys.executable, str(WRITER), store_url]  # as fast as it can, with its own maintenance
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        drain = threading.Thread(target=writer.stdout.read)
        drain.start()
        store = open_metrics(urls_of(store_url)[1])
        until = time.monotonic() + 20.0  # every check reads more
        for number in range(4):
            if number and time.monotonic() > until:
                break
            store.prune(full_store.T0 + timedelta(days=1))
            assert [messages(report) for report in check(store_url, deep=True).values()] == ["", ""]
        store.close()
        writer.kill()
        drain.join()


def test_a_missing_store_is_an_error_and_is_not_created(store_url: str) -> None:
    if store_url.startswith("sqlite"):
        with pytest.raises(StoreError, match="No store found at") as caught:
            check(store_url)
        assert "db upgrade" in caught.value.hint
        assert not Path(store_url.removeprefix("sqlite:///")).exists()
    else:
        assert all("does not contain a store" in messages(report) for report in check(store_url).values())


@pytest.mark.slow
def test_a_newer_revision_is_a_problem_and_an_older_one_a_note(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(filled, "state", "UPDATE state_revision SET version_num = 's9999'")
    reports = check(filled)
    assert "written by a newer outrider" in messages(reports["state"])
    assert reports["metrics"].problems == []
    change(filled, "state", "UPDATE state_revision SET version_num = 's0001'")
    monkeypatch.setitem(metadata.HEADS, "state", "s0002")
    reports = check(filled)
    assert reports["state"].problems == []
    assert "db upgrade" in reports["state"].notes[-1]


# --- damage of files ------------------------------------------------------------------------------


def file_of(url: str, name: str) -> Path:
    return Path(urls_of(url)[name == "metrics"].removeprefix("sqlite:///"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["state", "metrics"])
def test_a_corrupted_file_is_named_with_the_command_that_restores_it(filled_sqlite: str, name: str) -> None:
    path = file_of(filled_sqlite, name)
    with path.open("r+b") as file:
        for page in range(3, 9):
            file.seek(16_384 * page)
            file.write(b"\xa5" * 4_000)
    reports = check(filled_sqlite)
    assert str(path) in messages(reports[name])
    assert "damaged" in messages(reports[name])
    assert any("outrider db restore FILE --force" in problem.hint for problem in reports[name].problems)
    assert reports["metrics" if name == "state" else "state"].problems == []


def test_a_file_that_is_not_a_database_and_a_missing_file(sqlite_url: str) -> None:
    full_store.fill(sqlite_url, count=2)
    file_of(sqlite_url, "state").write_bytes(b"hello " * 10_000)
    file_of(sqlite_url, "metrics").unlink()
    reports = check(sqlite_url)
    assert "is not a SQLite database" in messages(reports["state"])
    assert "outrider-metrics.db is missing" in messages(reports["metrics"])


# --- damage on a server ---------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[postgres.Server]:
    try:
        with postgres.server() as server:
            yield server
    except postgres.MissingError as error:
        pytest.skip(f"missing: {error}")


def corrupt(server: postgres.Server, database: str, relation: str, at: int) -> None:
    path = server.sql(f"SELECT pg_relation_filepath('{relation}')", database)
    server.stop()
    with (server.folder / "data" / path).open("r+b") as file:
        file.seek(at)
        file.write(b"\xa5" * 512)
    server.start()


@pytest.mark.slow
def test_an_unreadable_page_of_a_server_is_reported_and_the_rest_is_checked(own_server: postgres.Server) -> None:
    with own_server.database() as url:
        full_store.fill(url, count=62)
        corrupt(own_server, url.rpartition("/")[2], "audit", 0)
        reports = check(url)
        assert "damaged" in messages(reports["state"])
        assert any("outrider db restore FILE --force" in problem.hint for problem in reports["state"].problems)
        assert "audit" not in reports["state"].rows
        assert reports["state"].rows["startup"] == 1
        assert reports["metrics"].problems == []
        toast = own_server.sql(
            "SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'block'", url.rpartition("/")[2]
        )
        corrupt(own_server, url.rpartition("/")[2], toast, 8192)
        assert "damaged" in messages(check(url)["metrics"])
        own_server.stop()
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            check(url)
        own_server.start()


@pytest.mark.slow
def test_amcheck_compares_indexes_with_their_tables(own_server: postgres.Server) -> None:
    with own_server.database() as url:
        full_store.fill(url, count=62)
        database = url.rpartition("/")[2]
        own_server.sql("CREATE EXTENSION amcheck", database)
        assert [(report.problems, report.notes) for report in check(url).values()] == [([], []), ([], [])]
        own_server.sql("CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader", database)
        reader_url = url.replace("outrider@", "reader@")
        assert "not checked by amcheck" in check(reader_url)["state"].notes[0]
        own_server.sql("UPDATE pg_index SET indisready = false WHERE indexrelid = 'audit_by_time'::regclass", database)
        own_server.sql(
            "INSERT INTO audit (at_us, event, subject, reason, cycle, by, body) VALUES (1,'a','b','c','d','e','{}')",
            database,
        )
        own_server.sql("UPDATE pg_index SET indisready = true WHERE indexrelid = 'audit_by_time'::regclass", database)
        problem = check(url)["state"].problems[0]
        assert "audit_by_time" in problem.message
        assert "REINDEX" in problem.hint


# --- invariants of blocks ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_truncated_or_corrupt_payload_is_reported(filled: str) -> None:
    row = block_of(filled)
    for payload, text in (
        (row.payload[:-1], "bytes, not the"),
        (b"XXXX" + row.payload[4:], "unknown format"),
        (row.payload[:10], "cannot be unpacked"),
        (b"", "cannot be unpacked"),
    ):
        change(filled, "metrics", "UPDATE block SET payload = :payload WHERE id = :id", payload=payload, id=row.id)
        problem = check(filled)["metrics"].problems[0]
        assert f"Block {row.id} (gpu, raw, from 2026-03-01T12:00:00+00:00)" in problem.message
        assert text in problem.message
        assert "outrider db restore FILE" in problem.hint


@pytest.mark.slow
def test_corrupt_values_are_reported_by_a_deep_check(filled: str) -> None:
    row = block_of(filled)
    payload = row.payload[:-20] + b"\0" * 20
    change(filled, "metrics", "UPDATE block SET payload = :payload WHERE id = :id", payload=payload, id=row.id)
    assert check(filled)["metrics"].problems == []
    assert f"Block {row.id}" in messages(check(filled, deep=True)["metrics"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("instants", 7, "60 timestamps, not the 7 of its row"),
        ("end_us", 1, "other timestamps"),
        ("cohort_id", 2, "40 entities; its list has 5"),
        ("keyset_id", 2, "other columns than its list"),
    ],
)
def test_a_row_that_does_not_match_its_block_is_reported(filled: str, column: str, value: int, text: str) -> None:
    row = block_of(filled)
    change(filled, "metrics", f"UPDATE block SET {column} = :value WHERE id = :id", value=value, id=row.id)
    assert text in messages(check(filled)["metrics"])


@pytest.mark.slow
def test_a_corrupt_list_and_a_list_with_missing_ids_are_reported(filled: str) -> None:
    change(
        filled,
        "metrics",
        "UPDATE cohort SET members = :members WHERE id = 1",
        members=np.arange(3, dtype="<i4").tobytes(),
    )
    assert "cohort 1 of the metrics is damaged" in messages(check(filled)["metrics"])
    change(filled, "metrics", "DELETE FROM signal WHERE key = 'hw_accel_power_watts'")
    assert "refers to 1 missing" in messages(check(filled)["metrics"])
    change(filled, "metrics", "UPDATE entity SET kind = 'node' WHERE kind = 'replica'")
    assert "which is not a valid node key" in messages(check(filled)["metrics"])


def test_a_missing_list_is_reported(filled_sqlite: str) -> None:
    with contextlib.closing(sqlite3.connect(file_of(filled_sqlite, "metrics"), isolation_level=None)) as plain:
        plain.execute("DELETE FROM cohort WHERE id = 2")
    text = messages(check(filled_sqlite)["metrics"])
    assert "rows of block refer to" in text
    assert "refers to a missing or damaged list of entities" in text


@pytest.mark.slow
def test_two_blocks_with_the_same_cells_are_reported(filled: str) -> None:
    row = block_of(filled)
    change(
        filled,
        "metrics",
        "INSERT INTO block (tier, kind, start_us, end_us, instants, cohort_id, keyset_id, payload) "
        f"SELECT tier, kind, start_us, end_us, instants, cohort_id, keyset_id, payload FROM block WHERE id = {row.id}",
    )
    (problem,) = check(filled)["metrics"].problems
    assert f"Blocks {row.id} and " in problem.message
    assert "hold the same entity's column" in problem.message


@pytest.mark.slow
def test_blocks_of_other_entities_or_signals_may_overlap_in_time(store_url: str) -> None:
    store = open_metrics(urls_of(store_url)[1])
    times = full_store.T0.timestamp() + 60.0 * np.arange(30)
    values = np.ones((1, 30, 1))
    for gpu in full_store.GPUS[:8]:
        for key in (full_store.POWER, full_store.ECC):
            store.write_block(EntityKind.GPU, times, [key], [gpu], values)
    store.write_block(EntityKind.GPU, times + 900, [full_store.POWER], full_store.GPUS[8:10], np.ones((2, 30, 1)))
    store.close()
    assert check(store_url, deep=True)["metrics"].problems == []
    store = open_metrics(urls_of(store_url)[1])
    store.write_block(EntityKind.GPU, times + 900, [full_store.POWER], full_store.GPUS[9:11], np.ones((2, 30, 1)))
    store.close()
    assert "hold the same entity's column" in messages(check(store_url)["metrics"])


def test_every_record_stored_as_json_is_checked() -> None:
    tables_with_records = {
        table.name for base in (metadata.metrics, metadata.state) for table in base.sorted_tables if "body" in table.c
    }
    assert set(check_rows.RECORDS) == tables_with_records


@pytest.mark.slow
def test_rows_in_progress_of_maintenance_do_not_overlap(filled: str) -> None:
    row = block_of(filled)
    names = "tier, kind, start_us, end_us, instants, cohort_id, keyset_id, payload"
    duplicate = f"INSERT INTO block ({names}) SELECT {names} FROM block WHERE id = {row.id}"
    change(filled, "metrics", duplicate, "INSERT INTO hidden (block_id) SELECT max(id) FROM block")
    assert check(filled)["metrics"].problems == []


def test_overlaps_equal_those_of_a_comparison_of_every_pair() -> None:
    generator = np.random.default_rng(1)
    for _ in range(200):
        count = int(generator.integers(2, 12))
        starts = np.sort(generator.integers(0, 30, count))
        ends = starts + generator.integers(0, 6, count)
        members = {number: np.unique(generator.integers(0, 12, 2)).astype(np.int32) for number in range(count)}
        columns = {number: np.unique(generator.integers(0, 3, 1)).astype(np.int32) for number in range(count)}
        seen = check_blocks._OverlapInput(groups={("gpu", "raw"): 0})
        for number in range(count):
            for name, value in zip(
                seen.numbers, (0, number, starts[number], ends[number], number, number), strict=True
            ):
                seen.numbers[name].append(int(value))
        problems: list[str] = []
        check_blocks._overlaps(seen, check_blocks._MemberLists(dict(members), {}, dict(columns)), problems.append)
        expected = any(
            starts[b] <= ends[a] and set(members[a]) & set(members[b]) and set(columns[a]) & set(columns[b])
            for a in range(count)
            for b in range(a + 1, count)
        )
        assert bool(problems) == expected


# --- decisions ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cycle_with_decisions_and_no_values_is_reported(filled: str) -> None:
    database = Database(urls_of(filled)[1], "metrics")
    at = int((full_store.T0.timestamp() + 60 * 60) * 1_000_000)
    with database.writing() as connection:
        connection.execute(sa.delete(metadata.block).where(metadata.block.c.end_us == at))
    database.close()
    (problem,) = check(filled)["metrics"].problems
    assert "1 cycle has decisions and no values, the first at 2026-03-01T13:00:00Z" in problem.message
    reports = check(filled, spooled=lambda: checks.BufferedCycles([at]))["metrics"]
    assert (reports.problems, "in the write buffer" in reports.notes[-1]) == ([], True)
    reports = check(filled, spooled=lambda: checks.BufferedCycles(lost=[Span(at - 15, at, 2)]))["metrics"]
    assert (reports.problems, "the write buffer dropped them" in reports.notes[-1]) == ([], True)
    for other in (Span(0, at - 1, 1000), Span(at + 1, at + 9, 1000), Span(0, at, 0)):
        reports = check(filled, spooled=lambda other=other: checks.BufferedCycles(lost=[other]))["metrics"]
        assert "1 cycle has decisions and no values" in messages(reports)
    reports = check(filled, spooled=lambda: checks.BufferedCycles(record_error="dropped.json cannot be read."))[
        "metrics"
    ]
    assert "dropped.json cannot be read" in reports.notes[-1]
    assert "1 cycle has decisions and no values" in messages(reports)


def cycles(store_url: str, count: int) -> tuple[SqlMetricStore, Callable[[int], None]]:
    """A store with ``count`` cycles, one per minute, and a function that writes values without decisions."""
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
def test_a_late_cycle_before_the_cut_does_not_make_deleted_cycles_a_problem(store_url: str) -> None:
    metrics, write = cycles(store_url, 5 * cycle_writer.AN_HOUR)
    retention, now = Retention(raw=timedelta(hours=2)), cycle_writer.instant(5 * cycle_writer.AN_HOUR + 5)
    assert metrics.maintain(now, retention).deletions.rows["raw", DeletionReason.AGE] > 0
    assert messages(check(store_url)["metrics"]) == ""
    write(65)
    assert messages(check(store_url)["metrics"]) == ""
    for minute in range(3):
        metrics.maintain(now + timedelta(minutes=minute), retention)
        assert messages(check(store_url)["metrics"]) == ""
    metrics.close()
    lost = int(cycle_writer.instant(4 * cycle_writer.AN_HOUR + 30).timestamp() * 1e6)
    change(store_url, "metrics", "DELETE FROM block WHERE tier = 'raw' AND end_us >= :at", at=lost)
    change(store_url, "metrics", "DELETE FROM hidden WHERE block_id NOT IN (SELECT id FROM block)")
    assert "cycles have decisions and no values" in messages(check(store_url)["metrics"]), (
        "values after the cut must exist"
    )


@pytest.mark.slow
def test_hidden_rows_do_not_count_as_values(store_url: str) -> None:
    metrics, _ = cycles(store_url, 10)
    metrics.close()
    change(store_url, "metrics", "INSERT INTO hidden (block_id) SELECT max(id) - 1 FROM block")
    assert "1 cycle has decisions and no values" in messages(check(store_url)["metrics"])


@pytest.mark.slow
def test_unreadable_records_are_counted_and_the_first_is_named(filled: str) -> None:
    change(filled, "state", "UPDATE alert SET body = 'oops' WHERE fingerprint IN ('f5', 'f10')")
    change(filled, "state", "UPDATE incident SET body = '{}' WHERE id = 'i5'")
    change(filled, "state", "UPDATE document SET payload = :payload WHERE area = 'detector'", payload=b"oops")
    change(filled, "metrics", "UPDATE event SET body = '[]' WHERE dedup_key = 'k20'")
    assert "Table alert: 2 rows cannot be read, the first is f10" in messages(check(filled)["state"])
    reports = check(filled, deep=True)
    for text in (
        "Table alert: 2 rows",
        "Table incident: 1 row cannot be read, the first is i5",
        "Table document: 1 row",
    ):
        assert text in messages(reports["state"])
    assert "Table event: 1 row" in messages(reports["metrics"])


def test_at_most_twenty_problems_are_reported(sqlite_url: str) -> None:
    full_store.fill(sqlite_url, count=30)
    change(sqlite_url, "metrics", "UPDATE block SET instants = 9999")
    assert len(check(sqlite_url)["metrics"].problems) == 20


@pytest.mark.slow
def test_a_new_empty_store_has_no_problem(store_url: str) -> None:
    migrate.upgrade(store_url)
    database = Database(urls_of(store_url)[1], "metrics")
    with contextlib.closing(database), database.reading() as connection:
        assert sa.inspect(connection).has_table("latest_gpu")
    assert [report.problems for report in check(store_url, deep=True).values()] == [[], []]
