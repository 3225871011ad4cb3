"""Generated histories: a day's wave with noise, from a fixed seed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import (
    Calibration,
    CellStatus,
    EntityKind,
    EntityRef,
    FleetService,
    SignalKey,
    Window,
)

NOW = datetime(2026, 5, 20, 9, 0, tzinfo=UTC)
SERVICE = EntityRef("lab", EntityKind.SERVICE, "prod", "chat-70b")
STEP = timedelta(minutes=10)


class Build:
    """Builds inputs of the planner; every method is deterministic."""

    now = NOW
    service = SERVICE
    step = STEP

    @staticmethod
    def times(days: float) -> np.ndarray:
        count = round(days * 144)
        return NOW.timestamp() - 600.0 * np.arange(count, 0, -1)

    @classmethod
    def wave(cls, days: float, *, level: float = 20.0, noise: float = 0.05, seed: int = 7) -> np.ndarray:
        times = cls.times(days)
        hour = times / 3600.0 % 24
        shape = 1.0 + 0.8 * np.sin((hour - 8) / 24 * 2 * np.pi)
        return level * shape * np.exp(noise * np.random.default_rng(seed).standard_normal(times.size))

    @classmethod
    def history(cls, values: np.ndarray, status: np.ndarray | None = None, service: EntityRef = SERVICE) -> Window:
        times = NOW.timestamp() - 600.0 * np.arange(values.size, 0, -1)
        result = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT) if status is None else status
        return Window(
            EntityKind.SERVICE,
            (service,),
            times,
            (SignalKey("svc_requests_per_second"),),
            values[None, :, None],
            result.astype(np.uint8)[None, :, None],
            STEP,
        )

    @staticmethod
    def calibration(**changes) -> Calibration:
        facts = {
            "service": SERVICE,
            "gpu_type": "H100",
            "tokens_per_request": 300.0,
            "batch": 32.0,
            "tokens_per_second_per_sequence": 25.0,
            "tensor_parallel": 4,
            "pipeline_parallel": 1,
            "startup_seconds": 300.0,
            "samples": 100,
            "origin": "measured",
        }
        return Calibration(**{**facts, **changes})

    @staticmethod
    def fleet(**changes) -> FleetService:
        facts = {
            "service": SERVICE,
            "gpu_type": "H100",
            "current_replicas": 10,
            "ready_replicas": changes.get("current_replicas", 10),
            "floor": 2,
            "ceiling": 40,
            "price_per_gpu_hour": 2.5,
            "currency": "EUR",
        }
        return FleetService(**{**facts, **changes})


@pytest.fixture(scope="session")
def build() -> type[Build]:
    return Build
