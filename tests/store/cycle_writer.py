"""Writes cycles to a store and prints each number once it is written, until tests/store/killing.py kills it.

``python cycle_writer.py STORE_URL [FIRST]``. A cycle is a minute. After each hour, maintenance runs in another thread
and prints the line ``upkeep`` before and ``kept`` after it.
"""

from __future__ import annotations

import itertools
import os
import queue
import sys
import threading
import time
import traceback
from datetime import UTC, datetime, timedelta

import numpy as np

from outrider.model import (
    SUM_BUCKET,
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
from store.factory import SqlMetricStore, open_metrics, open_state, urls_of

START = datetime(2026, 3, 1, tzinfo=UTC)
STEP = timedelta(minutes=1)
AN_HOUR = 60  # cycles
GAUGES = (SignalKey("hw_accel_power_watts"), SignalKey("node_ready"))
INCREASES = (
    SignalKey("hw_accel_energy_joules_total"),
    SignalKey("engine_ttft_seconds", bucket=3),
    SignalKey("engine_ttft_seconds", bucket=SUM_BUCKET),
)
KEYS = (*GAUGES, *INCREASES)
GPUS = tuple(EntityRef("prod", EntityKind.GPU, None, f"gpu-{index}") for index in range(200))


def instant(number: int) -> datetime:
    """The timestamp of a cycle."""
    return START + number * STEP


def commit_of(number: int, at: datetime) -> CycleCommit:
    names = [f"{number}-{part}" for part in "ab"]
    alerts = tuple(
        Alert(name, "r", Priority.P2, GPUS[0], AlertState.FIRING, AlertReason.STILL_TRUE, at, at) for name in names
    )
    messages = tuple(Message(name, "im", NotifyReason.OPENED, Priority.P2, None, "t", "b" * 2000, at) for name in names)
    return CycleCommit(CycleRecord(str(number), at, 0.1, 1, 1, 400, 0, 2, 0), alerts=alerts, messages=messages)


def print_line(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def maintain_hours(metrics: SqlMetricStore, hours: queue.SimpleQueue[datetime]) -> None:
    """Runs maintenance of every hour that is over. Ends the process if it fails."""
    try:
        while True:
            at = hours.get()
            while not hours.empty():
                at = hours.get()
            print_line("upkeep")
            metrics.prune(at)
            print_line("kept")
    except BaseException:  # noqa: BLE001 the writer must not continue without maintenance
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    state_url, metrics_url = urls_of(sys.argv[1])
    state, metrics = open_state(state_url), open_metrics(metrics_url)
    hours: queue.SimpleQueue[datetime] = queue.SimpleQueue()
    threading.Thread(target=maintain_hours, args=(metrics, hours), daemon=True).start()
    status = np.zeros((len(GPUS), len(KEYS)), dtype=np.uint8)
    for number in itertools.count(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
        at = instant(number)
        values = np.full(status.shape, float(number))
        metrics.write(at, [SampleBatch("dcgm", at, EntityKind.GPU, KEYS, GPUS, values, status)])
        state.commit(commit_of(number, at))
        print_line(number)
        if number % AN_HOUR == 0:
            hours.put(at)
        time.sleep(0.002)  # a lock is not fair: without a pause maintenance may starve


if __name__ == "__main__":
    main()
