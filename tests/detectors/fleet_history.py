"""Windows of synthetic days with a daily rhythm and noise, for learning detectors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from detectors.base import sampling
from outrider.model import CellStatus, DetectorState, EntityKind, EntityRef, Finding, Floats, NoVerdict, Window
from outrider.topology import Topology

NOW = 1_800_000_000.0
DAY = 86400.0


def names(kind: EntityKind, count: int) -> tuple[EntityRef, ...]:
    return tuple(EntityRef("lab", kind, None, f"{kind.value}-{number:02d}") for number in range(count))


def window(kind: EntityKind, signals: Sequence[str], times: Floats, values: Floats, step: float) -> Window:
    """``values`` of shape (entities, times, keys of the signals)."""
    status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    entities = names(kind, values.shape[0])
    return Window(kind, entities, times, sampling.keys_of(signals), values, status, timedelta(seconds=step))


def rhythm(times: Floats, count: int, levels: Sequence[float], seed: int = 0) -> Floats:
    """A level that swings by half over the day, with noise of 3 %: (count, times, len(levels))."""
    daily = 1.0 + 0.5 * np.sin(2 * np.pi * times / DAY)
    noise = 1.0 + 0.03 * np.random.default_rng(seed).normal(size=(count, times.size, len(levels)))
    return daily[None, :, None] * np.asarray(levels)[None, None, :] * noise


def history(detector: Any, levels: Sequence[float], days: float = 5.0, count: int = 4, step: float = 300.0) -> Window:
    times = np.arange(NOW - days * DAY, NOW, step)
    return window(detector.kind, detector.signals, times, rhythm(times, count, levels), step)


def run_cycles(
    detector: Any,
    state: DetectorState,
    values: Floats,
    *,
    start: float = NOW,
    step: float = 15.0,
    topology: Topology | None = None,
) -> tuple[DetectorState, list[list[Finding | NoVerdict]]]:
    """Runs the detector cycle by cycle on windows of ten minutes. Returns the state and the verdicts of each cycle."""
    times = start + step * np.arange(values.shape[1])
    results = []
    for end in range(1, times.size + 1):
        first = max(0, end - int(600 / step))
        part = window(detector.kind, detector.signals, times[first:end], values[:, first:end], step)
        now = datetime.fromtimestamp(times[end - 1], tz=UTC)
        state, verdicts = detector.detect(state, part, topology or Topology.build(()), now)
        results.append(list(verdicts))
    return state, results


def findings_in(verdicts: Sequence[Finding | NoVerdict]) -> list[Finding]:
    return [one for one in verdicts if isinstance(one, Finding)]
