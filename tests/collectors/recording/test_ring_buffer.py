"""The ring buffer is bounded, survives a crash and replays exactly."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collectors.mapping.target import Target, targets_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.recording.reader import read_fleet
from collectors.recording.ring_buffer import SEGMENT, FlightRing, select_targets
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason, UsageError
from outrider.model import EntityKind, EntityRef, Event, EventKind

AT = datetime(2026, 3, 1, tzinfo=UTC)
STEP = timedelta(seconds=15)
TARGETS = targets_of(
    "c",
    [
        {"name": f"chat-{number}", "adapter": "vllm", "labels": {"service": "chat", "node": f"n{number % 2}"}}
        for number in range(4)
    ],
)


def page(number: int) -> bytes:
    return f'vllm:num_requests_running{{engine="0",model_name="llama"}} {number}\n'.encode() * 20


def rounds(ring: FlightRing, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        at = AT + number * STEP
        scrapes = [Scrape(target, at, page(number), None, 0.01, 200, 3.0, probed=True) for target in TARGETS[:-1]]
        failed = Scrape(TARGETS[-1], at, None, CollectError("chat-3: no", reason=CollectReason.REFUSED), 0.5)
        ring.add([*scrapes, failed])
        ring.flush()


def kept(ring: FlightRing, out: Path, since: datetime, until: datetime, targets=TARGETS) -> list[Scrape]:
    ring.export_recording(out, "c", targets, since, until)
    return list(read_fleet(out).scrapes())


def test_recorded_scrapes_are_read_back(tmp_path: Path) -> None:
    ring = FlightRing(tmp_path / "ring")
    rounds(ring, 40)
    scrapes = kept(ring, tmp_path / "out", AT + 10 * STEP, AT + 29 * STEP)
    assert len(scrapes) == 20 * 4
    good = next(one for one in scrapes if one.target.name == "chat-1")
    assert (good.at, good.body, good.health, good.load, good.probed) == (AT + 10 * STEP, page(10), 200, 3.0, True)
    bad = next(one for one in scrapes if one.target.name == "chat-3")
    assert bad.error is not None
    assert (bad.body, bad.error.reason, bad.duration_seconds) == (None, CollectReason.REFUSED, 0.5)
    with pytest.raises(UsageError, match="not empty"):
        ring.export_recording(tmp_path / "out", "c", TARGETS, AT, AT)
    ring.close()


def test_old_cycles_are_deleted_by_age_and_size(tmp_path: Path) -> None:
    ring = FlightRing(tmp_path / "ring", span=2 * SEGMENT)
    rounds(ring, 200)  # 50 minutes
    assert len(list((tmp_path / "ring").iterdir())) == 3
    assert kept(ring, tmp_path / "out", AT, AT + 200 * STEP)[0].at >= AT + 50 * 60 * STEP / 15 - 3 * SEGMENT
    assert ring.size_bytes < 100_000
    small = FlightRing(tmp_path / "small", limit_bytes=3_000)
    rounds(small, 200)
    assert 0 < small.size_bytes < 3_000 + 20 * 400  # the segment being written is never cut


def test_a_truncated_cycle_is_skipped(tmp_path: Path) -> None:
    ring = FlightRing(tmp_path / "ring")
    rounds(ring, 10)
    ring.close()
    (segment,) = (tmp_path / "ring").iterdir()
    segment.write_bytes(segment.read_bytes()[:-7])
    again = FlightRing(tmp_path / "ring")
    scrapes = kept(again, tmp_path / "out", AT, AT + 20 * STEP)
    assert max(one.at for one in scrapes) == AT + 8 * STEP


def test_an_unwritable_disk_does_not_affect_collection(tmp_path: Path) -> None:
    (tmp_path / "ring").write_text("a file where the folder should be", encoding="utf-8")
    ring = FlightRing(tmp_path / "ring" / "deep")
    collector = ScrapeManager(TARGETS, tap=ring.add)
    scrapes = collector.absorb([Scrape(TARGETS[0], AT, page(1), None, 0.0)], AT)
    ring.flush()
    assert scrapes.batches


def test_a_cycle_is_skipped_rather_than_waited_for(tmp_path: Path) -> None:
    ring = FlightRing(tmp_path / "ring")
    ring._pool.submit(lambda: None).result()
    gate = ring._busy = ring._pool.submit(time.sleep, 0.2)
    ring.add([Scrape(TARGETS[0], AT, page(1), None, 0.0)])
    assert ring.left_out == 1
    gate.result()


def test_events_of_exposition_pages_are_not_written_twice(tmp_path: Path) -> None:
    ring = FlightRing(tmp_path / "ring")
    rounds(ring, 3)
    gpu = EntityRef("c", EntityKind.GPU, None, "GPU-a")
    log = Event("1", EventKind.LOG, gpu, AT + STEP, "kernel", "79", {}, "a")
    ring.export_recording(
        tmp_path / "out", "c", TARGETS, AT, AT + 3 * STEP, [log, replace(log, id="2", source="chat-0")]
    )
    assert [one.code for one in read_fleet(tmp_path / "out").events] == ["79"]


@pytest.mark.parametrize(
    ("about", "most", "names"),
    [
        (set(), 10, ["chat-0", "chat-1", "chat-2", "chat-3"]),
        ({TARGETS[2].entity}, 2, ["chat-2", "chat-0"]),  # itself, then its node's
        ({TARGETS[1].node}, 3, ["chat-1", "chat-3"]),
        (set(), 3, []),
    ],
)
def test_targets_of_an_incident_come_first(about: set[EntityRef], most: int, names: list[str]) -> None:
    scrapes: list[Target] = select_targets(TARGETS, about, most)
    assert [target.name for target in scrapes] == names
