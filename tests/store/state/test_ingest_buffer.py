"""Ingest buffer on every store: in order of arrival, limited in size, kept until released."""

import threading
from datetime import UTC, datetime

import pytest

from outrider.records.ingest_buffer import BufferSize, PushedBlock
from store.factory import open_ingest_buffer
from store.memory import MemoryIngestBuffer

AT = datetime(2026, 11, 21, 8, 0, 0, 250_000, tzinfo=UTC)
PLENTY = 1_000_000


@pytest.fixture(params=["sqlite", "postgresql", "memory"])
def ingest_buffer(request):
    if request.param == "memory":
        buffer = MemoryIngestBuffer()
    else:
        buffer = open_ingest_buffer(
            request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
        )
    yield buffer
    buffer.close()


def block(number, size=10, samples=100):
    return PushedBlock("remote_write", f"10.0.0.{number}", AT, samples, bytes([number]) * size)


def test_blocks_are_read_back_unchanged_until_released(ingest_buffer):
    for number in range(3):
        assert ingest_buffer.put(block(number), PLENTY)
    taken = ingest_buffer.take(0, PLENTY)
    assert [block.sender for block in taken] == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    assert taken[1] == PushedBlock("remote_write", "10.0.0.1", AT, 100, b"\x01" * 10, taken[1].id)
    assert ingest_buffer.take(0, PLENTY) == taken
    assert ingest_buffer.take(taken[0].id, PLENTY) == taken[1:]
    ingest_buffer.release(taken[1].id)
    assert ingest_buffer.take(0, PLENTY) == taken[2:]
    assert ingest_buffer.waiting() == BufferSize(1, 100, 10)


def test_an_id_is_never_reused(ingest_buffer):
    ingest_buffer.put(block(1), PLENTY)
    (first,) = ingest_buffer.take(0, PLENTY)
    ingest_buffer.release(first.id)
    ingest_buffer.put(block(2), PLENTY)
    (second,) = ingest_buffer.take(0, PLENTY)
    assert second.id > first.id


def test_take_returns_the_requested_samples_but_at_least_one_block(ingest_buffer):
    for number in range(4):
        ingest_buffer.put(block(number), PLENTY)
    assert len(ingest_buffer.take(0, 250)) == 2
    assert len(ingest_buffer.take(0, 1)) == 1


def test_a_block_beyond_the_limit_is_rejected(ingest_buffer):
    assert ingest_buffer.put(block(1, size=60), 100)
    assert not ingest_buffer.put(block(2, size=60), 100)
    assert ingest_buffer.waiting().blocks == 1
    assert ingest_buffer.put(block(3, size=40), 100)


def test_concurrent_senders_cannot_exceed_the_limit_together(ingest_buffer):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(ingest_buffer.put(block(1, size=60), 100))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False] * 7 + [True]


def test_counts_of_rejected_samples_add_up(ingest_buffer):
    ingest_buffer.count({"late": 2})
    ingest_buffer.count({"late": 3, "too_many_series": 1})
    assert ingest_buffer.counted() == {"late": 5, "too_many_series": 1}


def test_another_process_reads_the_buffered_blocks(tmp_path):
    url = f"sqlite:///{tmp_path}/state.db"
    first = open_ingest_buffer(url)
    first.put(block(1), PLENTY)
    first.close()
    second = open_ingest_buffer(url)
    assert [block.sender for block in second.take(0, PLENTY)] == ["10.0.0.1"]
    second.close()
