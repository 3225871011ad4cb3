"""A backup is one consistent point in time of a store in use, and restores into SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import zstandard

from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import SchemaTooNewError, StoreDamagedError, StoreError, UsageError
from store import migrate
from store.admin import archive
from store.admin import backup as backups
from store.factory import open_ingest_buffer, open_metrics, open_state, urls_of
from store.schema import metadata
from store.sql.database import Database
from tests.store import full_store
from tests.store.full_store import NOW, back_up, restore_into

CYCLES = full_store.CYCLES // 5  # cycles with decisions
WRITER = Path(__file__).parent.with_name("cycle_writer.py")


@pytest.fixture
def second_url(request: pytest.FixtureRequest, postgres_server: Any) -> Iterator[str]:
    with postgres_server.database() as url:
        yield url


def other_url(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    return f"sqlite:///{folder}/other/y.db" if kind == "sqlite" else str(request.getfixturevalue("second_url"))


@pytest.mark.slow
@pytest.mark.parametrize("onto", ["sqlite", "postgresql"])
def test_a_backup_of_either_engine_restores_into_either(
    store_url: str, onto: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = f"b.tar{'.zst' if onto == 'sqlite' else ''}"
    full_store.fill(store_url)
    result = back_up(store_url, tmp_path / name)
    assert result.manifest.engine == store_url.partition(":")[0]
    assert result.bytes == (tmp_path / name).stat().st_size
    target = other_url(onto, tmp_path, request)
    done = restore_into(target, tmp_path / name)
    assert (dict(done.revisions), done.moved_aside) == (dict(metadata.HEADS), ())
    assert full_store.all_rows(target) == full_store.all_rows(store_url)
    assert full_store.read_all(target) == full_store.read_all(store_url)


@pytest.mark.slow
@pytest.mark.parametrize("onto", ["sqlite", "postgresql"])
def test_a_restored_store_continues_its_ids(
    full_backup: Path, onto: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target = other_url(onto, tmp_path, request)
    restore_into(target, full_backup)
    spool = open_ingest_buffer(urls_of(target)[0])
    spool.release(1_000)  # the ids of deleted rows are not reused
    spool.close()
    back_up(target, tmp_path / "again.tar")
    restore_into(target, tmp_path / "again.tar", force=True)
    full_store.fill(target, first=full_store.CYCLES, count=20)
    content = full_store.read_all(target)
    assert [item.id for item in content["pushed"]] == [4, 5, 6]
    assert content["posted"][-1][0] == 4
    assert len(content["cycles"]) == CYCLES + 4


def test_a_restore_needs_force_and_moves_the_old_files_aside(full_backup: Path, sqlite_url: str) -> None:
    state = open_state(urls_of(sqlite_url)[0])
    state.append_audit([AuditRecord(NOW, AuditEvent.PAUSED, "kept", "y")])
    state.close()
    with pytest.raises(UsageError, match="not empty") as caught:
        restore_into(sqlite_url, full_backup)
    assert "--force" in caught.value.hint
    for _ in range(2):  # twice in one second: nothing is overwritten
        done = restore_into(sqlite_url, full_backup, force=True)
    (old, _) = done.moved_aside
    assert old.name == "outrider.db.before-20260302T000000Z-2"
    first = old.with_name("outrider.db.before-20260302T000000Z")
    with contextlib.closing(sqlite3.connect(first)) as previous:
        assert previous.execute("select subject from audit").fetchall() == [("kept",)]
    with contextlib.closing(sqlite3.connect(old)) as previous:
        assert previous.execute("select count(*) from alert").fetchone() == (CYCLES,)
    remaining = {path.name for path in old.parent.iterdir()}
    assert {name for name in remaining if "before" not in name} == {"outrider.db", "outrider-metrics.db"}


def test_an_empty_store_needs_no_force_and_leaves_nothing_behind(full_backup: Path, sqlite_url: str, full: str) -> None:
    migrate.upgrade(sqlite_url)
    assert restore_into(sqlite_url, full_backup).moved_aside == ()
    folder = Path(sqlite_url.removeprefix("sqlite:///")).parent
    assert {path.name for path in folder.iterdir()} == {"outrider.db", "outrider-metrics.db"}
    assert full_store.all_rows(sqlite_url) == full_store.all_rows(full)


@pytest.mark.slow
def test_on_postgresql_force_empties_the_tables_and_a_failure_leaves_them(
    full_backup: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_store.fill(postgres_url, first=7, count=10)
    before = full_store.all_rows(postgres_url)
    with pytest.raises(UsageError, match="not empty"):
        restore_into(postgres_url, full_backup)

    def fail(*_: object) -> None:
        raise StoreError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr("store.admin.copying.number_on", fail)
        with pytest.raises(StoreError, match="cut off"):
            restore_into(postgres_url, full_backup, force=True)
    assert full_store.all_rows(postgres_url) == before
    restore_into(postgres_url, full_backup, force=True)
    assert [item.id for item in full_store.read_all(postgres_url)["cycles"]][:1] == ["c65"]
    assert len(full_store.read_all(postgres_url)["cycles"]) == CYCLES


@pytest.mark.slow
def test_columns_that_left_the_catalog_are_kept(store_url: str, tmp_path: Path, second_url: str) -> None:
    full_store.fill(store_url, count=5)
    database = Database(urls_of(store_url)[1], "metrics")
    with database.writing() as connection:
        connection.execute(sa.text('ALTER TABLE latest_gpu ADD COLUMN "of_old_days" DOUBLE PRECISION'))
        connection.execute(sa.text("UPDATE latest_gpu SET of_old_days = 0.1"))
        connection.execute(sa.text("CREATE TABLE latest_pool_of_a_stranger (a INTEGER)"))
    database.close()
    back_up(store_url, tmp_path / "b.tar")
    restore_into(second_url, tmp_path / "b.tar")
    database = Database(second_url, "metrics")
    with database.reading() as connection:
        assert connection.execute(sa.text("SELECT DISTINCT of_old_days FROM latest_gpu")).all() == [(0.1,)]
        assert not sa.inspect(connection).has_table("latest_pool_of_a_stranger")
    database.close()


# --- concurrent writers -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_backup_during_writes_is_consistent(store_url: str, tmp_path: Path) -> None:
    command = [sys.executable, str(WRITER), store_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = int(writer.stdout.readline())
        drain = threading.Thread(target=writer.stdout.read)
        drain.start()
        for name in ("one", "two"):
            back_up(store_url, tmp_path / f"{name}.tar")
        writer.send_signal(signal.SIGKILL)
        drain.join()
    counts = []
    for name in ("one", "two"):
        target = f"sqlite:///{tmp_path}/{name}/y.db"
        restore_into(target, tmp_path / f"{name}.tar")
        state, metrics = open_state(urls_of(target)[0]), open_metrics(urls_of(target)[1])
        cycles = state.cycles(limit=100_000)
        assert len(cycles) >= acknowledged
        assert len(state.alerts(limit=100_000)) == len(state.messages(limit=100_000)) == 2 * len(cycles)
        newest = max(cycles, key=lambda item: item.at).at
        window = metrics.read_windows(
            full_store.EntityKind.GPU,
            [full_store.POWER],
            newest,
            newest + timedelta(seconds=1),
            timedelta(seconds=1),
        )
        assert window.values.shape == (200, 1, 1)  # the values behind the newest decision
        counts.append(len(cycles))
        state.close()
        metrics.close()
    assert counts[1] >= counts[0]


@pytest.mark.slow
def test_a_writer_continues_while_pages_are_copied(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/w/y.db"
    full_store.fill(url, count=100)
    state = open_state(urls_of(url)[0])
    written = []

    def write(_stage: str, _share: float) -> None:
        state.append_audit([AuditRecord(NOW, AuditEvent.PAUSED, f"during {len(written)}", "y")])
        written.append(_stage)

    monkeypatch.setattr(backups, "_PAGES_AT_ONCE", 2)
    before = full_store.all_rows(url)
    backups.backup(url, tmp_path / "b.tar", program="1", now=NOW, force=False, progress=write)
    assert written.count("state") > 10
    assert written.count("metrics") > 2
    restore_into(f"sqlite:///{tmp_path}/z/y.db", tmp_path / "b.tar")
    assert full_store.all_rows(f"sqlite:///{tmp_path}/z/y.db") == before
    assert len(state.audit(limit=10_000)) == len(before["audit"]) + len(written)
    state.close()


# --- the file -------------------------------------------------------------------------------------


def test_a_backup_is_a_tar_of_readable_sqlite_files(full_backup: Path, tmp_path: Path) -> None:
    with (
        full_backup.open("rb") as packed,
        zstandard.ZstdDecompressor().stream_reader(packed) as plain,
        tarfile.open(fileobj=plain, mode="r|") as tar,
    ):
        tar.extractall(tmp_path, filter="data")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["format"], manifest["program"], manifest["engine"]) == (1, "1.2.3", "sqlite")
    assert manifest["revisions"] == metadata.HEADS
    assert manifest["made_at"] == "2026-03-02T00:00:00+00:00"
    with contextlib.closing(sqlite3.connect(f"file:{tmp_path}/state.db?mode=ro&immutable=1", uri=True)) as state:
        assert state.execute("select count(*) from cycle").fetchone() == (CYCLES,)
    assert full_backup.stat().st_mode & 0o077 == 0


def test_an_existing_file_is_kept_without_force(full: str, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_text("mine")
    with pytest.raises(UsageError, match="already exists") as caught:
        back_up(full, tmp_path / "b.tar")
    assert "--force" in caught.value.hint
    assert (tmp_path / "b.tar").read_text() == "mine"
    back_up(full, tmp_path / "b.tar", force=True)
    assert archive.manifest_of(tmp_path / "b.tar").engine == "sqlite"
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


def test_a_failure_leaves_the_older_backup_only(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    back_up(full, tmp_path / "b.tar")
    before = (tmp_path / "b.tar").read_bytes()
    monkeypatch.setattr(archive, "member_of", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UsageError, match="No space left"):
        back_up(full, tmp_path / "b.tar", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]
    assert (tmp_path / "b.tar").read_bytes() == before


def test_a_small_disk_is_rejected_before_the_copy(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.admin.backup.shutil.disk_usage", lambda _: type("usage", (), {"free": 1 << 20}))
    with pytest.raises(StoreError, match="1 MiB free; this needs"):
        back_up(full, tmp_path / "b.tar")
    assert list(tmp_path.iterdir()) == []


def test_a_second_backup_to_the_same_file_is_refused(full: str, tmp_path: Path) -> None:
    def start_second(stage: str, _share: float) -> None:
        if stage == "pack" and not refused:
            with pytest.raises(UsageError, match="Another backup is writing"):
                back_up(full, tmp_path / "b.tar", force=True)
            refused.append(stage)

    refused: list[str] = []
    backups.backup(full, tmp_path / "b.tar", program="1", now=NOW, force=False, progress=start_second)
    assert refused
    archive.unpack(tmp_path / "b.tar", tmp_path, lambda _: None)


def test_a_missing_store_or_folder_is_an_error(store_url: str, tmp_path: Path, full: str) -> None:
    with pytest.raises(StoreError, match="No store found"):
        back_up(store_url, tmp_path / "b.tar")
    with pytest.raises(UsageError, match="cannot be written"):
        back_up(full, tmp_path / "missing" / "b.tar")
    assert not (tmp_path / "b.tar.part").exists()


def test_a_damaged_store_is_not_backed_up(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    full_store.fill(url, count=50)
    with (tmp_path / "x.db").open("r+b") as file:
        file.seek(16_384 * 3)
        file.write(b"\xff" * 16_384 * 4)
    with pytest.raises(StoreDamagedError, match=r"x\.db is damaged") as caught:
        back_up(url, tmp_path / "b.tar")
    assert "outrider db restore FILE" in caught.value.hint
    assert not (tmp_path / "b.tar").exists()


def damage(kind: str, path: Path, source: Path) -> None:
    whole = source.read_bytes()
    if kind == "cut off":
        path.write_bytes(whole[: len(whole) * 2 // 3])
    elif kind == "one bit":
        at = len(whole) - 40_000
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    elif kind == "a text":
        path.write_text("dear diary " * 100)
    elif kind == "empty":
        path.touch()
    elif kind == "another tar":
        with tarfile.open(path, "w") as tar:
            tar.add(__file__, "manifest.json")
    elif kind == "a folder":
        path.mkdir()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cut off", "one bit", "a text", "empty", "another tar", "a folder", "missing"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_damaged_backup_is_refused_and_the_store_unchanged(
    kind: str, packed: bool, full: str, full_backup: Path, sqlite_url: str, tmp_path: Path
) -> None:
    source = full_backup
    if not packed:
        source = tmp_path / "plain.tar"
        back_up(full, source)
    full_store.fill(sqlite_url, count=5)
    before = full_store.all_rows(sqlite_url)
    damage(kind, tmp_path / "b.tar", source)
    with pytest.raises(UsageError, match=r"b\.tar") as caught:
        restore_into(sqlite_url, tmp_path / "b.tar", force=True)
    assert caught.value.hint
    assert full_store.all_rows(sqlite_url) == before


def with_revision(file: Path, name: str, revision: str, target: Path) -> None:
    folder = target.with_suffix(".unpacked")
    folder.mkdir()
    manifest = archive.unpack(file, folder, lambda _: None)
    changed = archive.Manifest(
        manifest.program, manifest.engine, manifest.made_at, {**manifest.revisions, name: revision}, manifest.members
    )  # type: ignore[dict-item]
    with target.open("wb") as out:
        archive.pack(out, changed, folder, lambda _: None, packed=False)


def test_a_backup_of_a_newer_program_is_refused(full_backup: Path, store_url: str, tmp_path: Path) -> None:
    with_revision(full_backup, "state", "s9999", tmp_path / "newer.tar")
    with pytest.raises(SchemaTooNewError, match=r"newer\.tar was written by a newer outrider") as caught:
        restore_into(store_url, tmp_path / "newer.tar")
    assert "that version" in caught.value.hint


def test_a_server_of_a_newer_program_is_unchanged(full_backup: Path, postgres_url: str) -> None:
    migrate.upgrade(postgres_url)
    database = Database(postgres_url)
    with database.writing() as connection:
        connection.execute(sa.text("update state_revision set version_num = 's9999'"))
    database.close()
    with pytest.raises(SchemaTooNewError) as caught:
        restore_into(postgres_url, full_backup, force=True)
    assert "createdb" in caught.value.hint
