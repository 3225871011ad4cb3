"""One recorded series as a detector of learnt levels sees it: what it said of each reading, and what it knew then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.clock import from_unix
from outrider.model import CellStatus, EntityKind, EntityRef, Finding, Floats, Window
from outrider.ports import Detector
from outrider.topology import Topology
from service.evaluation import events, recordings

STEP = 300.0  # seconds between readings
BEGIN = 1_800_000_000.0 - 1_800_000_000.0 % 86400.0
DAY = 288  # readings
LEARNT = 10 * DAY  # before the first reading that is judged
SIGNAL, LOAD = "hw_accel_memory_used_bytes", "hw_accel_utilization_ratio"
BYTES = 1e12  # of a metric of 1, so that the floor of the unit is nothing beside it
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Part:
    """A metric of a recorded server: readings to learn from, then readings to judge with their labels."""

    name: str
    values: Floats
    labels: NDArray[np.bool_]
    first: int  # the first that is judged


@dataclass(frozen=True, slots=True)
class Judged:
    """What was said of each reading that was judged: the finding or None, and some of the detector's memory."""

    said: Sequence[Finding | None]
    memory: Mapping[str, Floats]


def server(folder: Path, name: str, metric: int, begin: int, end: int) -> Part:
    """Readings ``begin`` to ``end`` of the labelled part of a server, and the ten days before them."""
    one = next(one for one in recordings.servers(folder, STEP) if one.name == name)
    shown = slice(one.train + begin - LEARNT, one.train + end)
    return Part(f"{name}, metric {metric}", one.values[shown, metric], one.labels[shown], LEARNT)


def walk(detector: Detector, part: Part, keep: Sequence[str] = (), load: Floats | None = None) -> Judged:
    """Let a detector of ``SIGNAL`` with the load ``LOAD`` learn and then judge, reading by reading."""
    columns = {SIGNAL: BYTES * (1.0 + part.values)} | ({} if load is None else {LOAD: load})
    unknown = np.full(part.values.size, np.nan)
    plane = np.stack([columns.get(key.name, unknown) for key in detector.keys], axis=1)[None]
    status = np.where(np.isnan(plane), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    entity = (EntityRef("recorded", EntityKind.GPU, None, "one"),)
    times = BEGIN + STEP * np.arange(float(part.values.size))

    def window(shown: slice) -> Window:
        parts = (times[shown], detector.keys, plane[:, shown], status[:, shown])
        return Window(EntityKind.GPU, entity, *parts, timedelta(seconds=STEP))

    state = detector.initial()
    warm = getattr(detector, "warm", None)
    if warm is not None:
        state = warm(state, window(slice(0, part.first)))
    said: list[Finding | None] = []
    kept: dict[str, list[float]] = {name: [] for name in keep}
    for place in range(part.first, times.size):
        shown = slice(max(place - 8, 0), place + 1)
        state, verdicts = detector.detect(state, window(shown), Topology.build(()), from_unix(float(times[place])))
        said.append(next((one for one in verdicts if isinstance(one, Finding)), None))
        for name in keep:
            kept[name].append(float(state.arrays[name][0, 0]))
    return Judged(said, {name: np.array(values) for name, values in kept.items()})


def days(count: int) -> Floats:
    """Times of readings, in days from the first that is judged."""
    found: Floats = np.arange(count) / DAY
    return found


def spans(flags: NDArray[np.bool_]) -> list[Span]:
    """Where a flag is set, in days."""
    return [(first / DAY, (last + 1) / DAY) for first, last in events.spans(flags)]


def told(judged: Judged) -> list[Span]:
    """Where something was said, in days."""
    return spans(np.array([one is not None for one in judged.said]))


def plain(values: Floats) -> Floats:
    """Values of ``SIGNAL`` in the units of the recording."""
    found: Floats = values / BYTES - 1.0
    return found


def edges(judged: Judged) -> Floats:
    """The end of what was expected on the side on which the value lay, while something was said."""
    return np.array([_edge(one) for one in judged.said])


def _edge(said: Finding | None) -> float:
    expected = None if said is None or not said.evidence else said.evidence[0].expected
    if said is None or expected is None:
        return float("nan")
    low, high = (np.nan if side is None else side for side in (expected.low, expected.high))
    observed = said.evidence[0].observed
    below = observed is not None and observed < (low + high) / 2.0
    return float(low if below or np.isnan(high) else high)
