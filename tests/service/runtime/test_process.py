"""The schedule of the engine, and the maintenance of the metric store."""

import asyncio
from datetime import UTC, datetime, timedelta
from unittest import mock

import numpy as np
import pytest

from outrider.clock import ManualClock
from outrider.errors import StoreError
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey
from service.config.settings import GameDaySettings, Settings, StoreSettings
from service.runtime import process
from service.runtime.periodic_tasks import PeriodicTasks
from service.runtime.store_maintenance import StoreMaintenance
from service.wiring import platform as wiring_platform
from store.tsdb.retention import Retention
from tests.service.oncall.test_roster_source import calendar_of
from tests.support import on_call
from tests.support.waiting import until_async

HOUR = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
POWER = SignalKey("hw_accel_power_watts")
GPU = EntityRef("c", EntityKind.GPU, None, "GPU-1")


def sample(at, power):
    status = np.full((1, 1), CellStatus.PRESENT, np.uint8)
    return SampleBatch("dcgm", at, EntityKind.GPU, (POWER,), (GPU,), np.array([[power]]), status)


@pytest.fixture
def platform(tmp_path):
    settings = Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/o.db"))
    made = wiring_platform.platform(settings, ManualClock(HOUR + timedelta(minutes=62)))
    for cycle in range(8):
        at = HOUR + cycle * STEP
        made.metrics.write(at, [sample(at, 300.0 + cycle)])
    yield made
    asyncio.run(made.close())


def read(platform):
    return platform.metrics.read_windows(EntityKind.GPU, [POWER], HOUR, HOUR + 8 * STEP, STEP).values.ravel()


def test_calendars_of_schedules_are_read_by_a_task(platform, tmp_path):
    file = tmp_path / "duty.ics"
    file.write_text(calendar_of("wang", "20260101T000000Z", "20270101T000000Z"))
    oncall = on_call.settings(schedules=[on_call.SCHEDULE | {"calendar": {"file": file}}])
    with mock.patch.object(platform, "settings", platform.settings.model_copy(update={"oncall": oncall})):
        tasks = process.periodic_tasks_of(platform, platform.cycle.parts.clock)
    asyncio.run(tasks.run("calendars"))
    assert [item.schedule for item in platform.state.calendars()] == ["model"]


def test_an_hour_that_is_over_is_compacted_and_reads_as_before(platform):
    schedule = process.periodic_tasks_of(platform, platform.cycle.parts.clock)
    assert set(schedule.names) == {
        "cycle",
        "dispatch",
        "deliver",
        "early",
        "checkpoint",
        "upkeep",
        "flight",
        "expire_received",
        "maintenance_calendars",
        "prune_state",
        "weekly_report",
    }
    days = {"game_days": [GameDaySettings(name="tuesday", faults=["gpu-lost"])]}
    with mock.patch.object(platform, "settings", platform.settings.model_copy(update=days)):
        assert "game_days" in process.periodic_tasks_of(platform, platform.cycle.parts.clock).names
    assert list(read(platform)) == [300.0 + cycle for cycle in range(8)]
    asyncio.run(schedule.run("upkeep"))
    assert platform.metrics.compact(HOUR + timedelta(hours=2)) == 0, "nothing was left to compact"
    assert list(read(platform)) == [300.0 + cycle for cycle in range(8)]


async def let_runs_pass(interval):
    """Waits until another schedule of this interval has run three times."""
    runs, other = [], PeriodicTasks(ManualClock(HOUR))

    async def run():
        runs.append(None)

    async def ran_thrice():
        return len(runs) >= 3

    other.every(interval, "other", run)
    other.start()
    await until_async(ran_thrice, "another schedule has run three times")
    await other.stop()


def test_a_task_that_is_due_soon_runs_at_once_and_once_more_if_it_was_in_progress():
    async def wake():
        schedule, runs, first = PeriodicTasks(ManualClock(HOUR)), [], asyncio.Event()

        async def dispatch():
            runs.append(len(runs))
            await first.wait()

        schedule.every(timedelta(hours=1), "dispatch", dispatch)
        schedule.run_soon("dispatch")
        await asyncio.sleep(0)
        assert runs == [], "nothing runs before the start"
        schedule.start()

        async def ran(count):
            return len(runs) == count

        await asyncio.to_thread(schedule.run_soon, "dispatch")
        await until_async(lambda: ran(1), "the task runs")
        for _ in range(3):
            schedule.run_soon("dispatch")
        await asyncio.sleep(0)
        first.set()
        await until_async(lambda: ran(2), "the task has run once more")
        await schedule.stop()
        schedule.run_soon("dispatch")
        await asyncio.sleep(0)
        return runs

    assert asyncio.run(wake()) == [0, 1]


def test_a_task_that_takes_longer_than_its_interval_is_not_logged_at_each_of_its_times(caplog):
    async def overrun():
        schedule, first = PeriodicTasks(ManualClock(HOUR)), asyncio.Event()
        schedule.every(timedelta(milliseconds=10), "deliver", first.wait)
        schedule.start()
        await let_runs_pass(timedelta(milliseconds=10))
        first.set()
        await schedule.stop()

    asyncio.run(overrun())
    assert caplog.messages == []


def test_stopping_waits_for_the_cycle_in_flight():
    done, interval = [], timedelta(milliseconds=10)

    async def begin_and_stop():
        schedule, begun = PeriodicTasks(ManualClock(HOUR)), asyncio.Event()

        async def cycle():
            begun.set()
            await asyncio.to_thread(done.append, "committed")

        schedule.every(interval, "cycle", cycle)
        schedule.start()
        await begun.wait()
        await schedule.stop()
        count = len(done)
        await let_runs_pass(interval)
        return count

    count = asyncio.run(begin_and_stop())
    assert count == len(done) >= 1, "nothing begins after the stop, and what had begun is done"


def test_a_failed_maintenance_is_logged_and_stops_nothing(platform, capsys):
    schedule = process.periodic_tasks_of(platform, platform.cycle.parts.clock)
    with mock.patch.object(platform.metrics, "maintain", side_effect=StoreError("disk full")):
        asyncio.run(schedule.run("upkeep"))
    assert "disk full" in "".join(capsys.readouterr())


@pytest.mark.slow
def test_a_stop_ends_maintenance_after_its_step(platform):
    schedule = process.periodic_tasks_of(platform, platform.cycle.parts.clock)

    async def stopped_first():
        schedule.start()
        await schedule.stop()
        return schedule.stopping()

    assert asyncio.run(stopped_first())


def test_maintenance_logs_its_results_with_reasons(platform, capsys):
    maintenance = StoreMaintenance(platform.metrics, Retention(raw=timedelta(hours=1)), lambda: False)
    maintenance.run_due(HOUR + timedelta(minutes=62))
    output = "".join(capsys.readouterr())
    assert "compact_spans=1" in output.replace(" ", "")
    assert "10m_spans=1" in output.replace(" ", "")
    maintenance.run_due(HOUR + timedelta(hours=3))
    assert "raw_age=2" in "".join(capsys.readouterr()).replace(" ", "")
    platform.metrics.write(HOUR, [sample(HOUR, 1.0)])
    for _ in range(2):  # the first run lets late values settle
        maintenance.run_due(HOUR + timedelta(hours=3))
    assert "rolled_up_already=1" in "".join(capsys.readouterr()).replace(" ", "")
    maintenance.run_due(HOUR + timedelta(hours=3))
    assert "rolled_up_already" not in "".join(capsys.readouterr()), "logged once"


def test_values_deleted_by_the_size_limit_are_a_warning(platform, capsys):
    maintenance = StoreMaintenance(platform.metrics, Retention(size_bytes=1), lambda: False)
    platform.metrics.write(HOUR + timedelta(hours=1), [sample(HOUR + timedelta(hours=1), 1.0)])
    maintenance.run_due(HOUR + timedelta(hours=2, minutes=1))
    output = "".join(capsys.readouterr())
    assert "data_deleted_for_size_limit" in output
    assert "size_limit_bytes" in output


def test_values_kept_beyond_their_retention_are_a_warning(platform, capsys):
    StoreMaintenance(platform.metrics, Retention(raw=timedelta(0)), lambda: False).run_due(HOUR + timedelta(minutes=61))
    assert "retention_postponed" in "".join(capsys.readouterr())
