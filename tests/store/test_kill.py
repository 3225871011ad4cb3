"""A writer that is killed leaves whole cycles: what it said was written is there, and nothing by halves."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from outrider.model import EntityKind, SignalKey
from store.sql import open_metrics, open_state, urls_of

T0 = datetime(2026, 3, 1, tzinfo=UTC)
WRITER = Path(__file__).with_name("cycle_writer.py")


@pytest.mark.parametrize("seed", range(5))
def test_only_whole_cycles_survive_kill_9(store_url: str, seed: int) -> None:
    command = [sys.executable, str(WRITER), store_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(random.Random(seed).uniform(0.0, 0.2))
        writer.send_signal(signal.SIGKILL)
        said = [first, *writer.stdout.readlines()]
    acknowledged = max(int(line) for line in said if line.endswith("\n"))
    state, metrics = open_state(urls_of(store_url)[0]), open_metrics(urls_of(store_url)[1])
    try:
        cycles = state.cycles(limit=10_000)
        assert len(cycles) >= acknowledged
        for count, what in (
            (len(state.alerts(limit=10_000)), "alerts"),
            (len(state.messages(limit=10_000)), "messages"),
        ):
            assert count == 2 * len(cycles), what
        window = metrics.read_windows(
            EntityKind.GPU,
            [SignalKey("hw_accel_power_watts"), SignalKey("node_ready")],
            T0,
            T0 + timedelta(hours=3),
            timedelta(seconds=1),
        )
        whole = (window.values == window.times[None, :, None] - T0.timestamp()).all(axis=(0, 2))
        empty = np.isnan(window.values).all(axis=(0, 2))
        assert (whole | empty).all()
        assert whole[1 : acknowledged + 1].all()
    finally:
        state.close()
        metrics.close()
