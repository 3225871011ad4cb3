"""A restore that is cut off leaves the old store or the new one; one that must not begin leaves the old."""

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
from tests.store.full_store import bring_back

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
def test_a_restore_that_is_killed_leaves_the_old_store_or_the_new_one(
    store_url: str, full: str, full_backup: Path, seed: int
) -> None:
    full_store.fill(store_url, first=3, count=4)
    old, new = full_store.stored(store_url), full_store.stored(full)
    with subprocess.Popen(
        [sys.executable, "-c", RESTORER, store_url, str(full_backup)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(random.Random(seed).uniform(0.0, 0.6))
        child.send_signal(signal.SIGKILL)
    found = full_store.stored(store_url)
    assert found in (old, new)
    bring_back(store_url, full_backup, force=True)
    assert full_store.stored(store_url) == new


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours handles it."""


def killed_at(step: int, patch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let the process die before the step of that number that changes names of files."""
    done = 0

    def dies(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done > step:
                raise Killed
            return real(*arguments, **options)

        return call

    for name in ("rename", "replace", "unlink"):
        patch.setattr(Path, name, dies(getattr(Path, name)))
    patch.setattr(atomic_swap.os, "link", dies(atomic_swap.os.link))
    return lambda: done


def test_whoever_opens_the_store_next_finishes_a_swap_that_was_cut_off_at_any_step(tmp_path: Path) -> None:
    for step in range(100):
        folder = tmp_path / str(step)
        folder.mkdir()
        for name in ("x.db", "x-metrics.db"):
            (folder / name).write_text("old")
            (folder / f"{name}-wal").write_text("old wal")
            (folder / f"{name}.restored").write_text("new")
        moves = [atomic_swap.Move(f"{name}.restored", name, f"{name}.before") for name in ("x.db", "x-metrics.db")]
        with pytest.MonkeyPatch.context() as patch:
            killed_at(step, patch)
            with contextlib.suppress(Killed):
                atomic_swap.swap(folder / "x.db", moves)
                break
        begun = atomic_swap.journal_of(folder / "x.db").exists()
        atomic_swap.finish(folder / "x.db")
        said = "new" if begun else "old"
        assert {(folder / name).read_text() for name in ("x.db", "x-metrics.db")} == {said}
        if begun:
            assert not list(folder.glob("*-wal")) or all("before" in path.name for path in folder.glob("*-wal"))
            assert {path.read_text() for path in folder.glob("*.before")} == {"old"}
            assert {path.read_text() for path in folder.glob("*.before-wal")} == {"old wal"}
            assert not atomic_swap.journal_of(folder / "x.db").exists()
    assert step > 8
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "x.db": "new", "x-metrics.db": "new", "x.db.before": "old", "x-metrics.db.before": "old",
        "x.db.before-wal": "old wal", "x-metrics.db.before-wal": "old wal",
    }  # fmt: skip


def test_opening_the_store_finishes_a_restore_that_was_cut_off(sqlite_url: str, full: str, full_backup: Path) -> None:
    for opened in ("state", "metrics"):
        full_store.fill(sqlite_url, count=3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(atomic_swap, "_move", lambda *_: (_ for _ in ()).throw(Killed))
            with pytest.raises(Killed):
                bring_back(sqlite_url, full_backup, force=True)
        (open_state(urls_of(sqlite_url)[0]) if opened == "state" else open_metrics(urls_of(sqlite_url)[1])).close()
        assert full_store.stored(sqlite_url) == full_store.stored(full)
        for path in Path(sqlite_url.removeprefix("sqlite:///")).parent.iterdir():
            path.unlink()


def test_a_file_that_another_process_has_open_is_left_alone(sqlite_url: str, full_backup: Path) -> None:
    full_store.fill(sqlite_url, count=5)
    before = full_store.stored(sqlite_url)
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
            bring_back(sqlite_url, full_backup, force=True)
        other.kill()
    assert "Stop outrider" in caught.value.hint
    assert full_store.stored(sqlite_url) == before
    bring_back(sqlite_url, full_backup, force=True)


def test_a_damaged_store_is_moved_aside_whole(sqlite_url: str, full: str, full_backup: Path) -> None:
    full_store.fill(sqlite_url, count=5)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    path.write_bytes(b"not a database at all" * 1000)
    with pytest.raises(UsageError, match="not empty"):
        bring_back(sqlite_url, full_backup)
    done = bring_back(sqlite_url, full_backup, force=True)
    assert done.moved_aside[0].read_bytes().startswith(b"not a database")
    assert full_store.stored(sqlite_url) == full_store.stored(full)
