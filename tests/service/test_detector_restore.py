"""An unusable checkpoint costs its detector the learned state, but never prevents the engine's start."""

import asyncio
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from outrider.clock import ManualClock
from outrider.model import CellStatus, DetectorState, EntityKind, EntityRef, SampleBatch
from service.config.settings import Settings, StoreSettings
from service.wiring import platform as wiring_platform
from store.schema import metadata

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
LATER = START + timedelta(hours=3)
NAME = "seasonal-gpu"
GPUS = tuple(EntityRef("c", EntityKind.GPU, None, f"GPU-{number}") for number in range(3))


@pytest.fixture
def settings(tmp_path):
    return Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/o.db"))


def open_platform(settings):
    return wiring_platform.platform(settings, ManualClock(LATER), lockstep=True)


def seasonal(platform):
    return next(one for one in platform.cycle.parts.detection.detector_set.detectors if one.name == NAME)


@pytest.fixture
def lived(settings):
    """A store with three hours of values and one check-point of what was learnt from them."""
    platform = open_platform(settings)
    keys = seasonal(platform).keys
    rng = np.random.default_rng(3)
    for minute in range(180):
        values = 50.0 + rng.normal(size=(len(GPUS), len(keys)))
        status = np.full(values.shape, CellStatus.PRESENT, np.uint8)
        at = START + timedelta(minutes=minute)
        platform.metrics.write(at, [SampleBatch("dcgm", at, EntityKind.GPU, keys, GPUS, values, status)])
    platform.warm(LATER)
    platform.checkpoint(LATER)
    learnt = states(platform)[NAME]
    asyncio.run(platform.close())
    return learnt


def states(platform):
    return platform.cycle.parts.detection.memory.states


def started_anew(settings):
    """The engine's start on this store: what was logged, and the states that it works with."""
    platform = open_platform(settings)
    with capture_logs() as logs:
        platform.warm(LATER)
    held = states(platform)
    asyncio.run(platform.close())
    return [entry for entry in logs if entry.get("detector") == NAME], held


def overwrite(settings, payload):
    platform = open_platform(settings)
    with platform.state._database.writing() as connection:
        table = metadata.document
        here = sa.and_(table.c.area == "detector", table.c.name == NAME)
        assert connection.execute(sa.update(table).where(here).values(payload=payload)).rowcount == 1
    asyncio.run(platform.close())


def kept(settings):
    platform = open_platform(settings)
    payload = platform.state._documents("detector")[NAME]
    asyncio.run(platform.close())
    return payload


def test_an_intact_checkpoint_is_restored_without_a_log_line(settings, lived):
    logs, held = started_anew(settings)
    assert [entry["event"] for entry in logs] == []
    np.testing.assert_array_equal(held[NAME].arrays["level"], lived.arrays["level"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: b"no archive at all",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:200] + b"\x00" * 300 + whole[500:],
        lambda whole: whole[:-30],
    ],
    ids=["empty", "text", "half", "overwritten", "without its end"],
)
def test_a_damaged_checkpoint_is_logged_and_relearned(settings, lived, damage):
    overwrite(settings, damage(kept(settings)))
    logs, held = started_anew(settings)
    assert [entry["event"] for entry in logs] == ["detector_state_damaged", "detector_warmed"]
    assert held[NAME].entities == lived.entities
    np.testing.assert_array_equal(held[NAME].arrays["level"], lived.arrays["level"])


@pytest.mark.slow
def test_a_checkpoint_of_another_version_is_logged_and_relearned(settings, lived):
    platform = open_platform(settings)
    older = DetectorState(lived.version - 1, lived.entities, lived.arrays)
    platform.state.save_detector_states({NAME: older}, LATER)
    asyncio.run(platform.close())
    logs, held = started_anew(settings)
    assert [entry["event"] for entry in logs] == ["detector_state_dropped", "detector_warmed"]
    assert "version" in logs[0]["because"]
    assert held[NAME].version == lived.version
    np.testing.assert_array_equal(held[NAME].arrays["level"], lived.arrays["level"])


@pytest.mark.slow
def test_state_of_other_signals_is_never_used(settings, lived):
    names = lived.arrays["signals"][::-1].copy()
    platform = open_platform(settings)
    other = DetectorState(lived.version, lived.entities, {**lived.arrays, "signals": names})
    platform.state.save_detector_states({NAME: other}, LATER)
    asyncio.run(platform.close())
    logs, held = started_anew(settings)
    assert [entry["event"] for entry in logs] == ["detector_state_dropped", "detector_warmed"]
    assert held[NAME].arrays["signals"].tolist() == lived.arrays["signals"].tolist()
