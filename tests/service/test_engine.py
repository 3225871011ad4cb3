"""The engine's schedule: what runs by the clock, and the hourly compaction of the metric store."""

import asyncio
from datetime import UTC, datetime, timedelta
from unittest import mock

import numpy as np
import pytest

from outrider.clock import ManualClock
from outrider.errors import StoreError
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey
from service import engine, jobs, wiring
from service.settings import GameDaySettings, Settings, StoreSettings

HOUR = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
POWER = SignalKey("hw_accel_power_watts")
GPU = EntityRef("c", EntityKind.GPU, None, "GPU-1")


@pytest.fixture
def platform(tmp_path):
    settings = Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/o.db"))
    made = wiring.platform(settings, ManualClock(HOUR + timedelta(minutes=62)))
    for cycle in range(8):
        at = HOUR + cycle * STEP
        status = np.full((1, 1), CellStatus.PRESENT, np.uint8)
        batch = SampleBatch("dcgm", at, EntityKind.GPU, (POWER,), (GPU,), np.array([[300.0 + cycle]]), status)
        made.metrics.write(at, [batch])
    yield made
    asyncio.run(made.close())


def read(platform):
    return platform.metrics.read_windows(EntityKind.GPU, [POWER], HOUR, HOUR + 8 * STEP, STEP).values.ravel()


def test_an_hour_that_is_over_is_compacted_and_reads_as_before(platform):
    schedule = engine.schedule_of(platform, platform.cycle.parts.clock)
    assert set(schedule.names) == {
        "cycle",
        "dispatch",
        "checkpoint",
        "compact",
        "flight",
        "prune_state",
        "weekly_report",
    }
    days = {"game_days": [GameDaySettings(name="tuesday", faults=["gpu-lost"])]}
    with mock.patch.object(platform, "settings", platform.settings.model_copy(update=days)):
        assert "game_days" in engine.schedule_of(platform, platform.cycle.parts.clock).names
    assert list(read(platform)) == [300.0 + cycle for cycle in range(8)]
    asyncio.run(schedule.run("compact"))
    assert platform.metrics.compact(HOUR + timedelta(hours=2)) == 0, "nothing was left to compact"
    assert list(read(platform)) == [300.0 + cycle for cycle in range(8)]


def test_stopping_waits_for_the_cycle_in_flight():
    done = []

    async def begin_and_stop():
        schedule, begun = jobs.Jobs(), asyncio.Event()

        async def cycle():
            begun.set()
            await asyncio.to_thread(done.append, "committed")

        schedule.every(timedelta(milliseconds=10), "cycle", cycle)
        schedule.start()
        await begun.wait()
        await schedule.stop()
        count = len(done)
        await asyncio.sleep(0.05)
        return count

    count = asyncio.run(begin_and_stop())
    assert count == len(done) >= 1, "nothing begins after the stop, and what had begun is done"


def test_a_failed_compaction_is_told_and_ends_nothing(platform, capsys):
    schedule = engine.schedule_of(platform, platform.cycle.parts.clock)
    with mock.patch.object(platform, "metrics", mock.Mock(compact=mock.Mock(side_effect=StoreError("disk full")))):
        asyncio.run(schedule.run("compact"))
    assert "disk full" in "".join(capsys.readouterr())
