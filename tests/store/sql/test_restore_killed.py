"""An interrupted restore leaves the old or the new store; a refused restore leaves the old one."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import StoreError, UsageError
from store.factory import open_metrics, open_state, urls_of
from store.sql import atomic_swap
from tests.store import full_store
from tests.store.full_store import restore_into

RESTORER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from store.admin.restore import restore
print("go", flush=True)
restore(sys.argv[1], Path(sys.argv[2]), now=datetime.now(UTC), force=True, progress=lambda *_: None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_killed_restore_leaves_the_old_or_the_new_store(
    store_url: str, full: str, full_backup: Path, seed: int
) -> None:
    full_store.fill(store_url, first=3, count=4)
    old, new = full_store.all_rows(store_url), full_store.all_rows(full)
    with subprocess.Popen(
        [sys.executable, "-c", RESTORER, store_url, str(full_backup)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(random.Random(seed).uniform(0.0, 0.6))
        child.send_signal(signal.SIGKILL)
    rows = full_store.all_rows(store_url)
    assert rows in (old, new)
    restore_into(store_url, full_backup, force=True)
    assert full_store.all_rows(store_url) == new


class Killed(BaseException):
    """Simulates the end of the process: no handler catches it."""


def kill_at(step: int, patch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Simulates a kill before the given file operation."""
    done = 0

    def die_at_step(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done > step:
                raise Killed
            return function(*arguments, **options)

        return call

    for name in ("rename", "replace", "unlink"):
        patch.setattr(Path, name, die_at_step(getattr(Path, name)))
    patch.setattr(atomic_swap.os, "link", die_at_step(atomic_swap.os.link))
    return lambda: done


def test_the_next_process_finishes_a_swap_interrupted_at_any_step(tmp_path: Path) -> None:
    for step in range(100):
        folder = tmp_path / str(step)
        folder.mkdir()
        for name in ("x.db", "x-metrics.db"):
            (folder / name).write_text("old")
            (folder / f"{name}-wal").write_text("old wal")
            (folder / f"{name}.restored").write_text("new")
        moves = [atomic_swap.Move(f"{name}.restored", name, f"{name}.before") for name in ("x.db", "x-metrics.db")]
        with pytest.MonkeyPatch.context() as patch:
            kill_at(step, patch)
            with contextlib.suppress(Killed):
                atomic_swap.swap(folder / "x.db", moves)
                break
        journal_exists = atomic_swap.journal_of(folder / "x.db").exists()
        atomic_swap.finish(folder / "x.db")
        expected = "new" if journal_exists else "old"
        assert {(folder / name).read_text() for name in ("x.db", "x-metrics.db")} == {expected}
        if journal_exists:
            assert not list(folder.glob("*-wal")) or all("before" in path.name for path in folder.glob("*-wal"))
            assert {path.read_text() for path in folder.glob("*.before")} == {"old"}
            assert {path.read_text() for path in folder.glob("*.before-wal")} == {"old wal"}
            assert not atomic_swap.journal_of(folder / "x.db").exists()
    assert step > 8
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "x.db": "new", "x-metrics.db": "new", "x.db.before": "old", "x-metrics.db.before": "old",
        "x.db.before-wal": "old wal", "x-metrics.db.before-wal": "old wal",
    }  # fmt: skip


def test_opening_the_store_finishes_an_interrupted_restore(sqlite_url: str, full: str, full_backup: Path) -> None:
    for opened in ("state", "metrics"):
        full_store.fill(sqlite_url, count=3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(atomic_swap, "_move", lambda *_: (_ for _ in ()).throw(Killed))
            with pytest.raises(Killed):
                restore_into(sqlite_url, full_backup, force=True)
        (open_state(urls_of(sqlite_url)[0]) if opened == "state" else open_metrics(urls_of(sqlite_url)[1])).close()
        assert full_store.all_rows(sqlite_url) == full_store.all_rows(full)
        for path in Path(sqlite_url.removeprefix("sqlite:///")).parent.iterdir():
            path.unlink()


@pytest.mark.slow
def test_a_file_open_in_another_process_is_not_replaced(sqlite_url: str, full_backup: Path) -> None:
    full_store.fill(sqlite_url, count=5)
    before = full_store.all_rows(sqlite_url)
    program = (
        "import sys; from store.factory import open_state\n"
        "store = open_state(sys.argv[1]); store.cycles(); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, sqlite_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StoreError, match=r"Another program has .* open") as caught:
            restore_into(sqlite_url, full_backup, force=True)
        other.kill()
    assert "Stop outrider" in caught.value.hint
    assert full_store.all_rows(sqlite_url) == before
    restore_into(sqlite_url, full_backup, force=True)


@pytest.mark.slow
def test_a_damaged_store_is_moved_aside_unchanged(sqlite_url: str, full: str, full_backup: Path) -> None:
    full_store.fill(sqlite_url, count=5)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    path.write_bytes(b"not a database at all" * 1000)
    with pytest.raises(UsageError, match="not empty"):
        restore_into(sqlite_url, full_backup)
    done = restore_into(sqlite_url, full_backup, force=True)
    assert done.moved_aside[0].read_bytes().startswith(b"not a database")
    assert full_store.all_rows(sqlite_url) == full_store.all_rows(full)
