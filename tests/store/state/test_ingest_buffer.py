"""What waits for the engine: in the order it came, within its bound, until it is let go; on every store."""

import threading
from datetime import UTC, datetime

import pytest

from outrider.records.ingest_buffer import PushedBlock, Waiting
from store.factory import open_ingest_buffer
from store.memory import MemoryIngestBuffer

AT = datetime(2026, 11, 21, 8, 0, 0, 250_000, tzinfo=UTC)
PLENTY = 1_000_000


@pytest.fixture(params=["sqlite", "postgresql", "memory"])
def spool(request):
    if request.param == "memory":
        found = MemoryIngestBuffer()
    else:
        found = open_ingest_buffer(
            request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
        )
    yield found
    found.close()


def block(number, size=10, samples=100):
    return PushedBlock("remote_write", f"10.0.0.{number}", AT, samples, bytes([number]) * size)


def test_blocks_come_out_as_they_went_in_and_stay_until_let_go(spool):
    for number in range(3):
        assert spool.put(block(number), PLENTY)
    taken = spool.take(0, PLENTY)
    assert [one.sender for one in taken] == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    assert taken[1] == PushedBlock("remote_write", "10.0.0.1", AT, 100, b"\x01" * 10, taken[1].id)
    assert spool.take(0, PLENTY) == taken
    assert spool.take(taken[0].id, PLENTY) == taken[1:]
    spool.release(taken[1].id)
    assert spool.take(0, PLENTY) == taken[2:]
    assert spool.waiting() == Waiting(1, 100, 10)


def test_a_number_is_never_given_twice(spool):
    spool.put(block(1), PLENTY)
    (first,) = spool.take(0, PLENTY)
    spool.release(first.id)
    spool.put(block(2), PLENTY)
    (second,) = spool.take(0, PLENTY)
    assert second.id > first.id


def test_as_many_samples_as_requested_but_at_least_one_block(spool):
    for number in range(4):
        spool.put(block(number), PLENTY)
    assert len(spool.take(0, 250)) == 2
    assert len(spool.take(0, 1)) == 1


def test_no_more_waits_than_may(spool):
    assert spool.put(block(1, size=60), 100)
    assert not spool.put(block(2, size=60), 100)
    assert spool.waiting().blocks == 1
    assert spool.put(block(3, size=40), 100)


def test_two_senders_at_once_do_not_both_get_the_last_place(spool):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(spool.put(block(1, size=60), 100))) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(answers) == [False] * 7 + [True]


def test_what_was_left_out_adds_up(spool):
    spool.count({"late": 2})
    spool.count({"late": 3, "too_many_series": 1})
    assert spool.counted() == {"late": 5, "too_many_series": 1}


def test_another_process_finds_what_one_has_left(tmp_path):
    url = f"sqlite:///{tmp_path}/state.db"
    first = open_ingest_buffer(url)
    first.put(block(1), PLENTY)
    first.close()
    second = open_ingest_buffer(url)
    assert [one.sender for one in second.take(0, PLENTY)] == ["10.0.0.1"]
    second.close()
