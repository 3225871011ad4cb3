"""Opening and upgrading: each error has one clear sentence and a hint."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import SchemaTooNewError, StoreError
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    CycleRecord,
    DecisionReason,
    EntityKind,
    EntityRef,
    Incident,
    Layer,
    Message,
    NotifyReason,
    Priority,
    RemediationSession,
    Verdict,
)
from outrider.ports import CycleCommit
from store.factory import SqlStateStore, open_metrics, open_state, revision, upgrade, urls_of
from store.migrations import runner
from store.schema import metadata
from store.sql.database import Database

T0 = datetime(2026, 3, 1, tzinfo=UTC)
RECORD = AuditRecord(T0, AuditEvent.PAUSED, "x", "y")


def full_commit() -> CycleCommit:
    gpu = EntityRef("prod", EntityKind.GPU, None, "a")
    alert = Alert("f", "r", Priority.P1, gpu, AlertState.FIRING, AlertReason.CONDITION_SEEN, T0, T0)
    incident = Incident("i", Layer.HARDWARE, Priority.P1, T0, (), (), ("f",), (), T0)
    action = Action(
        "a", "s", ActionKind.CORDON, gpu, {}, "i", True, Verdict.ALLOWED, DecisionReason.WITHIN_LIMITS,
        ActionStatus.INTENDED, T0,
    )  # fmt: skip
    return CycleCommit(
        CycleRecord("c", T0, 0.1, 1, 1, 1, 1, 1, 1),
        alerts=(alert,),
        incidents=(incident,),
        actions=(action,),
        sessions=(RemediationSession("s", "i", T0),),
        messages=(Message("m", "im", NotifyReason.OPENED, Priority.P1, "i", "t", "b", T0),),
        audit=(RECORD,),
    )


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def test_two_databases_of_one_url() -> None:
    assert urls_of("sqlite:///.outrider/outrider.db") == (
        "sqlite:///.outrider/outrider.db",
        "sqlite:///.outrider/outrider-metrics.db",
    )


@pytest.mark.parametrize("url", ["nonsense", "sqlite://", "sqlite:///:memory:", "mysql://h/db", "postgresql://h"])
def test_other_urls_are_refused_with_a_hint(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        urls_of(url)
    assert "sqlite:///path/to/file.db" in caught.value.hint


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgres"])
def test_a_server_holds_both_databases(scheme: str) -> None:
    url = f"{scheme}://ada@db.example:5433/outrider"
    assert urls_of(url) == (url, url)


def test_upgrade_creates_both_and_revision_creates_nothing(store_url: str) -> None:
    assert revision(store_url) == {"state": None, "metrics": None}
    if store_url.startswith("sqlite"):
        assert not path_of(store_url).parent.exists()
    assert upgrade(store_url) == metadata.HEADS
    assert upgrade(store_url) == metadata.HEADS
    assert revision(store_url) == metadata.HEADS


@pytest.mark.parametrize("name", ["metrics", "state"])
def test_the_migrations_create_the_tables_of_the_schema(name: metadata.Database, store_url: str) -> None:
    database = Database(store_url, name)
    try:
        runner.upgrade_database(database, name)
        with database.reading() as connection:
            context = MigrationContext.configure(connection, opts={"version_table": metadata.VERSION_TABLES[name]})
            assert compare_metadata(context, getattr(metadata, name)) == []
    finally:
        database.close()
    config = Config()
    folder = Path(runner.__file__).parent
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", str(folder / "versions" / name))
    assert ScriptDirectory.from_config(config).get_heads() == [metadata.HEADS[name]]


def test_a_database_of_a_newer_program_is_refused(store_url: str) -> None:
    upgrade(store_url)
    database = Database(store_url)
    with database.writing() as connection:
        connection.execute(sa.text("update state_revision set version_num = 's9999'"))
    database.close()
    with pytest.raises(SchemaTooNewError, match="written by a newer outrider") as caught:
        open_state(store_url)
    assert "newer version" in caught.value.hint


def test_a_file_that_is_not_a_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("hello, " * 1000)
    with pytest.raises(StoreError, match=r"x\.db is not a SQLite database") as caught:
        open_state(f"sqlite:///{tmp_path}/x.db")
    assert "store.url" in caught.value.hint


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be created") as caught:
        open_metrics(f"sqlite:///{tmp_path}/file/x.db")
    assert caught.value.hint


def test_a_folder_at_the_path_of_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.db").mkdir()
    with pytest.raises(StoreError, match="cannot be opened"):
        open_state(f"sqlite:///{tmp_path}/x.db")


def limit_connections(store: SqlStateStore, pragma: str) -> None:
    def limit(connection: sqlite3.Connection, _record: object, _proxy: object) -> None:
        connection.execute(f"PRAGMA {pragma}")

    sa.event.listen(store._database._opened.pool, "checkout", limit)


@pytest.fixture
def file_state(sqlite_url: str) -> Iterator[SqlStateStore]:
    store = open_state(sqlite_url)
    yield store
    store.close()


def test_a_full_disk_rolls_back_with_a_clear_error(file_state: SqlStateStore) -> None:
    state = file_state
    limit_connections(state, "max_page_count=1")  # SQLite then reports a full disk
    record = AuditRecord(T0, AuditEvent.PAUSED, "x" * 200_000, "y")
    with pytest.raises(StoreError, match=r"disk that holds .* is full") as caught:
        state.append_audit([RECORD, record])
    assert "Free space" in caught.value.hint
    assert state.audit() == ()


def test_a_read_only_file_is_an_error(file_state: SqlStateStore) -> None:
    state = file_state
    limit_connections(state, "query_only=ON")
    with pytest.raises(StoreError, match="cannot be written") as caught:
        state.append_audit([RECORD])
    assert "write access" in caught.value.hint


def test_a_locked_file_is_an_error(file_state: SqlStateStore, sqlite_url: str) -> None:
    state = file_state
    limit_connections(state, "busy_timeout=20")
    other = sqlite3.connect(path_of(urls_of(sqlite_url)[0]), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StoreError, match="Another program has locked"):
            state.append_audit([RECORD])
        assert state.audit() == ()  # readers do not wait
    finally:
        other.close()
    state.append_audit([RECORD])
    assert state.audit() == (RECORD,)


def test_a_new_store_may_be_opened_concurrently(store_url: str) -> None:
    failures: list[StoreError] = []

    def open_both() -> None:
        try:
            open_state(urls_of(store_url)[0]).close()
            open_metrics(urls_of(store_url)[1]).close()
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=open_both) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.slow
def test_two_processes_append_without_losing_a_row(state: SqlStateStore, store_url: str) -> None:
    program = """
import sys
from datetime import UTC, datetime
from outrider.audit import AuditEvent, AuditRecord
from store.factory import open_state
store = open_state(sys.argv[1])
for index in range(8):
    store.append_audit([AuditRecord(datetime(2026, 3, 1, tzinfo=UTC), AuditEvent.PAUSED, sys.argv[2], str(index))])
store.close()
"""
    url = urls_of(store_url)[0]
    writers = [subprocess.Popen([sys.executable, "-c", program, url, name]) for name in ("a", "b")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    audit = [(record.subject, record.reason) for record in state.audit()]
    assert sorted(audit) == sorted((name, str(index)) for name in ("a", "b") for index in range(8))


def test_a_failure_in_the_middle_of_a_commit_leaves_nothing(
    state: SqlStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = full_commit()
    monkeypatch.setattr("store.state.sql_state._trim", lambda *_: (_ for _ in ()).throw(StoreError("cut off")))
    with pytest.raises(StoreError, match="cut off"):
        state.commit(commit)
    assert state.alerts() == state.incidents() == state.actions() == state.messages() == ()
    assert state.cycles() == state.audit() == state.sessions() == ()
    monkeypatch.undo()
    state.commit(commit)
    assert len(state.alerts()) == len(state.incidents()) == len(state.actions()) == len(state.messages()) == 1
