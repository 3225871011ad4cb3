"""``outrider db`` on files and on a real PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from service.runtime.leader import FileLeader
from store.schema import metadata
from tests.service.cli.test_cli import answer, run
from tests.store import full_store

REMOTE = "store:\n  metrics:\n    url_write: http://127.0.0.1:1/api/v1/write\n    url_read: http://127.0.0.1:1\n"
REVISION = f"state {metadata.HEADS['state']}, metrics {metadata.HEADS['metrics']}"


@pytest.fixture(params=["sqlite", "postgresql"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a configuration that names a store on either engine."""
    url = "sqlite:///.outrider/outrider.db"
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgres_url"))
    (tmp_path / "outrider.yaml").write_text(f"store:\n  url: {url}\n")
    return tmp_path


def url_of(folder: Path) -> str:
    text = (folder / "outrider.yaml").read_text().split("url: ")[1].splitlines()[0]
    return text.replace("sqlite:///", f"sqlite:///{folder}/")


def refused(*arguments: str, cwd: Path, code: int) -> dict[str, Any]:
    done = run(*arguments, cwd=cwd)
    assert done.returncode == code, done.stderr
    error: dict[str, Any] = json.loads(done.stdout)["error"]
    assert error["hint"]
    return error


@pytest.mark.slow
def test_from_an_empty_folder_to_a_restored_store(folder: Path) -> None:
    assert answer("db", "upgrade", cwd=folder) == {"revision": REVISION}
    checked = answer("db", "check", cwd=folder)
    assert (checked["revision"], checked["sound"], checked["deep"]) == (REVISION, True, False)
    assert {"name": "latest_gpu", "rows": 0} in checked["databases"][1]["tables"]
    full_store.fill(url_of(folder), count=62)
    before = full_store.all_rows(url_of(folder))
    made = answer("db", "backup", "b.tar.zst", cwd=folder)
    assert (made["revision"], made["file"]) == (REVISION, "b.tar.zst")
    assert made["engine"] == url_of(folder).partition(":")[0]
    assert made["bytes"] == (folder / "b.tar.zst").stat().st_size
    assert [member["name"] for member in made["members"]] == ["state.db", "metrics.db"]
    assert "not empty" in refused("db", "restore", "b.tar.zst", cwd=folder, code=2)["message"]
    done = answer("db", "restore", "b.tar.zst", "--force", cwd=folder)
    assert (done["revision"], done["taken_from"], done["made_at"]) == (REVISION, made["engine"], made["made_at"])
    assert all((folder / path).exists() for path in done["moved_aside"])
    assert full_store.all_rows(url_of(folder)) == before
    assert answer("db", "check", "--deep", cwd=folder)["sound"]


@pytest.mark.slow
def test_prune_reports_its_work_and_file_sizes(folder: Path) -> None:
    full_store.fill(url_of(folder), count=30)
    with (folder / "outrider.yaml").open("a") as file:
        file.write("  retention: {raw: 2h, ten_minutes: 4000d, hours: 4000d, hourly_tables: 4000d, decisions: 10d}\n")
    pruned = answer("db", "prune", cwd=folder)
    assert pruned["revision"] == REVISION
    assert (pruned["done"]["compact"], pruned["done"]["10m"], pruned["done"]["1h"]) == (2, 2, 2)  # GPUs and replicas
    assert pruned["removed"]["raw_age"] > 0
    assert pruned["removed"]["audit"] > 0  # however long ago this test was written
    assert [one["name"] for one in pruned["databases"]] == ["state", "metrics"]
    assert all(one["bytes_before"] > 10_000 and one["bytes_after"] > 10_000 for one in pruned["databases"])
    again = answer("db", "prune", "--vacuum", cwd=folder)
    assert (again["done"], again["removed"]) == ({}, {})
    assert answer("db", "check", "--deep", cwd=folder)["sound"]
    answer("db", "backup", "b.tar", cwd=folder)
    before = full_store.all_rows(url_of(folder))
    answer("db", "restore", "b.tar", "--force", cwd=folder)
    assert full_store.all_rows(url_of(folder)) == before
    assert before["hourly_gpu"]


@pytest.mark.slow
def test_damage_exits_with_1_and_names_the_file(tmp_path: Path) -> None:
    full_store.fill(f"sqlite:///{tmp_path}/.outrider/outrider.db", count=62)
    path = tmp_path / ".outrider" / "outrider-metrics.db"
    with path.open("r+b") as file:
        file.seek(16_384 * 4)
        file.write(b"\xa5" * 16_384 * 3)
    checked = answer("db", "check", cwd=tmp_path, code=1)
    assert checked["sound"] is False
    assert [bool(one["problems"]) for one in checked["databases"]] == [False, True]
    assert "outrider-metrics.db is damaged" in checked["databases"][1]["problems"][0]["message"]
    assert "outrider db restore FILE --force" in checked["databases"][1]["problems"][0]["hint"]
    checked = run("db", "check", "-o", "table", "--lang", "zh", cwd=tmp_path)
    assert "损坏" in checked.stdout
    assert "outrider db restore FILE --force" in checked.stdout
    assert "is damaged" in refused("db", "backup", "b.tar", cwd=tmp_path, code=3)["message"]


@pytest.mark.slow
def test_buffered_cycles_are_not_damage(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/.outrider/outrider.db"
    full_store.fill(url, count=30)
    micros = round((full_store.T0.timestamp() + 25 * 60) * 1_000_000)
    with contextlib.closing(sqlite3.connect(tmp_path / ".outrider" / "outrider-metrics.db")) as plain:
        plain.execute("DELETE FROM block WHERE end_us = ?", (micros,))
        plain.commit()
    assert "decisions and no values" in str(answer("db", "check", cwd=tmp_path, code=1)["databases"][1]["problems"])
    spool = tmp_path / ".outrider" / "spool"
    spool.mkdir()
    (spool / f"{1:012d}-{micros}.cycle").touch()
    found = answer("db", "check", cwd=tmp_path)
    assert "in the write buffer" in found["databases"][1]["notes"][0]


def test_a_newer_database_is_refused_by_every_command(folder: Path) -> None:
    from store.sql.database import Database

    answer("db", "upgrade", cwd=folder)
    database = Database(url_of(folder))
    with database.writing() as connection:
        connection.exec_driver_sql("update state_revision set version_num = 's9999'")
    database.close()
    for command in (("upgrade",), ("backup", "b.tar"), ("prune",)):
        error = refused("db", *command, cwd=folder, code=3)
        assert "written by a newer outrider (revision s9999" in error["message"]
        assert "newer version" in error["hint"]
    assert "newer outrider" in str(answer("db", "check", cwd=folder, code=1)["databases"][0]["problems"])


def test_wrong_usage_exits_with_2_and_an_unavailable_store_with_3(tmp_path: Path) -> None:
    assert "No store found" in refused("db", "check", cwd=tmp_path, code=3)["message"]
    assert "No store found" in refused("db", "backup", "b.tar", cwd=tmp_path, code=3)["message"]
    assert not (tmp_path / ".outrider").exists()
    assert "missing.tar" in refused("db", "restore", "missing.tar", cwd=tmp_path, code=2)["message"]
    (tmp_path / "text.tar").write_text("hello")
    assert "not a complete outrider backup" in refused("db", "restore", "text.tar", cwd=tmp_path, code=2)["message"]
    answer("db", "upgrade", cwd=tmp_path)
    (tmp_path / "b.tar").touch()
    assert "already exists" in refused("db", "backup", "b.tar", cwd=tmp_path, code=2)["message"]
    assert "cannot be written" in refused("db", "backup", "no/b.tar", cwd=tmp_path, code=2)["message"]
    (tmp_path / "outrider.yaml").write_text("store:\n  url: postgresql://outrider@127.0.0.1:1/none\n")
    for command in (("check",), ("backup", "c.tar"), ("upgrade",), ("prune",)):
        assert "does not answer" in refused("db", *command, cwd=tmp_path, code=3)["message"]


def test_a_running_engine_blocks_a_restore(tmp_path: Path) -> None:
    answer("db", "upgrade", cwd=tmp_path)
    answer("db", "backup", "b.tar", cwd=tmp_path)
    leader = FileLeader(tmp_path / ".outrider" / "outrider.engine.lock")
    leader.acquire()
    try:
        assert "another engine" in refused("db", "restore", "b.tar", cwd=tmp_path, code=3)["message"]
        assert answer("db", "check", cwd=tmp_path)["sound"]
        answer("db", "backup", "b.tar", "--force", cwd=tmp_path)
    finally:
        leader.release()
    answer("db", "restore", "b.tar", cwd=tmp_path)


@pytest.mark.slow
def test_values_on_a_metric_server_are_reported_as_not_included(tmp_path: Path) -> None:
    full_store.fill(f"sqlite:///{tmp_path}/.outrider/outrider.db", count=30)
    with contextlib.closing(sqlite3.connect(tmp_path / ".outrider" / "outrider-metrics.db")) as plain:
        plain.execute("DELETE FROM block WHERE end_us > (SELECT min(end_us) FROM block)")  # written there since
        plain.commit()
    assert not answer("db", "check", cwd=tmp_path, code=1)["sound"]
    (tmp_path / "outrider.yaml").write_text(REMOTE)
    found = answer("db", "check", cwd=tmp_path)
    assert "stored on the server of store.metrics" in found["databases"][1]["notes"][0]
    assert "back it up separately" in answer("db", "backup", "b.tar", cwd=tmp_path)["notes"][0]


@pytest.mark.slow
def test_tables_follow_the_language(tmp_path: Path) -> None:
    full_store.fill(f"sqlite:///{tmp_path}/.outrider/outrider.db", count=10)
    assert "no corruption found" in run("db", "check", "-o", "table", cwd=tmp_path).stdout
    assert "未发现损坏" in run("db", "check", "-o", "table", "--lang", "zh", cwd=tmp_path).stdout
    assert "b.tar: " in run("db", "backup", "b.tar", "-o", "table", cwd=tmp_path).stdout
    restored = run("db", "restore", "b.tar", "--force", "-o", "table", "--lang", "zh", cwd=tmp_path).stdout
    assert "已恢复" in restored
    assert restored.count("原有数据保留在") == 2
    assert "已完成的维护" in run("db", "prune", "-o", "table", "--lang", "zh", cwd=tmp_path).stdout
    assert "没有到期的维护工作" in run("db", "prune", "-o", "table", "--lang", "zh", cwd=tmp_path).stdout
