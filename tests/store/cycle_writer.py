"""Writes cycles to a store for ever, and says each number once it is written. Killed by test_kill.py."""

from __future__ import annotations

import itertools
import sys
from datetime import UTC, datetime, timedelta

import numpy as np

from outrider.model import (
    Alert,
    AlertReason,
    AlertState,
    CycleRecord,
    EntityKind,
    EntityRef,
    Message,
    NotifyReason,
    Priority,
    SampleBatch,
    SignalKey,
)
from outrider.ports import CycleCommit
from store.sql import open_metrics, open_state, urls_of

START = datetime(2026, 3, 1, tzinfo=UTC)
KEYS = (SignalKey("hw_accel_power_watts"), SignalKey("node_ready"))
GPUS = tuple(EntityRef("prod", EntityKind.GPU, None, f"gpu-{index}") for index in range(200))


def commit_of(number: int, at: datetime) -> CycleCommit:
    names = [f"{number}-{part}" for part in "ab"]
    alerts = tuple(
        Alert(name, "r", Priority.P2, GPUS[0], AlertState.FIRING, AlertReason.STILL_TRUE, at, at) for name in names
    )
    messages = tuple(Message(name, "im", NotifyReason.OPENED, Priority.P2, None, "t", "b" * 2000, at) for name in names)
    return CycleCommit(CycleRecord(str(number), at, 0.1, 1, 1, 400, 0, 2, 0), alerts=alerts, messages=messages)


def main() -> None:
    state_url, metrics_url = urls_of(sys.argv[1])
    state, metrics = open_state(state_url), open_metrics(metrics_url)
    for number in itertools.count(1):
        at = START + timedelta(seconds=number)
        values = np.full((len(GPUS), len(KEYS)), float(number))
        status = np.zeros(values.shape, dtype=np.uint8)
        metrics.write(at, [SampleBatch("dcgm", at, EntityKind.GPU, KEYS, GPUS, values, status)])
        state.commit(commit_of(number, at))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
