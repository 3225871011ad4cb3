"""One engine per store on PostgreSQL: the lock, its loss, and a late commit of an engine that lost it."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest

from outrider.errors import StoreUnavailableError, TakenOverError
from outrider.model import CycleRecord
from outrider.ports import CycleCommit
from store.factory import open_lease, open_state
from tests.support import postgres

T0 = datetime(2026, 3, 1, tzinfo=UTC)


def cycle(name: str) -> CycleCommit:
    return CycleCommit(CycleRecord(name, T0, 0.1, 1, 1, 1, 0, 0, 0))


def test_the_second_process_reads_the_holder(postgres_url: str) -> None:
    first, second = open_lease(postgres_url), open_lease(postgres_url)
    assert first.take()
    assert not second.take()
    assert second.holder().startswith("session ")
    assert first.held()
    assert not second.held()
    first.release()
    assert second.holder() == ""
    assert second.take()
    second.release()


def test_a_killed_process_loses_the_lock(postgres_url: str) -> None:
    program = f"""
import time
from store.factory import open_lease
lease = open_lease({postgres_url!r})
assert lease.take()
print("taken", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        lease = open_lease(postgres_url)
        assert not lease.take()
        other.kill()
    for _ in range(100):
        if lease.take():
            break
    assert lease.held()
    lease.release()


def test_a_restart_of_the_server_releases_the_lock(postgres_url: str, postgres_server: postgres.Server) -> None:
    lease = open_lease(postgres_url)
    assert lease.take()
    postgres_server.stop("immediate")
    try:
        assert not lease.held()
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            lease.take()
    finally:
        postgres_server.start()
    assert lease.take()
    lease.release()


def test_a_late_commit_of_an_engine_that_lost_the_lock_is_rejected(store_url: str) -> None:
    first, second = open_state(store_url), open_state(store_url)
    first.take_over("one")
    first.commit(cycle("a"))
    second.take_over("two")
    second.commit(cycle("b"))
    with pytest.raises(TakenOverError, match="took over"):
        first.commit(cycle("c"))
    assert {cycle_record.id for cycle_record in second.cycles()} == {"a", "b"}
    first.close()
    second.close()
