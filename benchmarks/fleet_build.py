"""Builds the day of ``benchmarks.fleet_values`` by simulating it, scrape by scrape.

The fleet has 1,000 replicas in 20 services and 1,000 GPUs, under the load of a Wednesday: chat, code and agents, with
diurnal, weekly and bursty shapes; one service is idle. Values equal those of collecting the exposition pages, with
their rounding: whole percent and degrees, milliwatts, ratios of blocks, counter increases, buckets. Scrape offsets and
durations are drawn here at random; rates cover each target's own interval.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import print_progress
from benchmarks.fleet.batches import SCRAPE_SECONDS, Sampler
from outrider.model import EntityKind, EntityRef, SignalKey
from simulator.fleet import Fleet
from simulator.spec.fleets import FleetSpec, Lengths, PoolSpec, TrafficSpec, default_spec
from store.tsdb.chunk_codec import Floats32, Section, encode
from store.tsdb.cycle_matrix import CycleMatrix, Merger, Numbers
from store.tsdb.series_dictionary import sections_of

START = datetime(2026, 3, 4, tzinfo=UTC)  # a Wednesday
STEP = timedelta(seconds=15)
CYCLES = 240  # one hour
REPLICAS, SERVICES, NODES = 1000, 20, 125
GROUPS = {EntityKind.GPU: 8, EntityKind.REPLICA: 1}  # entities per target; other kinds have one target for all

_AGENT = Lengths(1500, 0.7, 1600, 0.5, 0.45)
_SHAPES = ("diurnal", "weekly", "bursty")
# Fetching a thousand pages takes a second or two; a page has a position in the queue, and some jitter.
_SPREAD_SECONDS, _JITTER_SECONDS, _DURATION_SIGMA = 1.5, 0.015, 0.3


def spec() -> FleetSpec:
    """Returns the fleet: one GPU per replica."""
    known = default_spec()
    chat, code = known.services
    usual = (chat, code, replace(chat, lengths=_AGENT), replace(code, lengths=_AGENT))
    replicas = REPLICAS // SERVICES
    services = []
    for number in range(SERVICES):
        peak = 0.005 if number == SERVICES - 1 else 0.35 + 0.02 * number
        services.append(
            replace(
                usual[number % len(usual)],
                name=f"service-{number:02}",
                tensor_parallel=1,
                replicas=replicas,
                ceiling=replicas,
                traffic=TrafficSpec(peak, peak_hour=10.0 + number / 2, shape=_SHAPES[number % len(_SHAPES)]),
            )
        )
    pools = (PoolSpec("pool", known.pools[0].gpu_type, NODES),)
    return FleetSpec("bench", pools, tuple(services), slice_seconds=15.0, tick_seconds=15.0)


def build(folder: Path, hours: int, seed: int) -> None:
    """Writes ``layout.json`` and one block per kind and hour (the store's own format, one section per signal)."""
    print_progress(f"simulating {hours} h of {REPLICAS} GPUs and {REPLICAS} replicas; cached for later runs")
    fleet = Fleet(spec(), seed=seed, start=START - 2 * STEP)
    entities, keys = Numbers[EntityRef](_Counter()), Numbers[SignalKey](_Counter())
    sampler, merger, scrape_timing = Sampler(fleet), Merger(entities, keys), _ScrapeTiming(seed)
    sampler.batches()
    fleet.step(STEP)
    layouts = {result.kind: result for result in merger.merge(fleet.now, sampler.batches())}
    for hour in range(hours):
        cycles: dict[EntityKind, list[CycleMatrix]] = {kind: [] for kind in layouts}
        for _ in range(CYCLES):
            fleet.step(STEP)
            for result in merger.merge(fleet.now, sampler.batches()):
                cycles[result.kind].append(result)
        for kind, whole in cycles.items():
            path = folder / f"{kind.value}-{hour:02}.block"
            path.write_bytes(_block(hour, layouts[kind], whole, scrape_timing))
        print_progress(f"{hour + 1} h of {hours}")
    layout = {
        kind.value: {
            "entities": [entities.named[number].key for number in result.entities.tolist()],
            "keys": [str(key) for key in result.keys],
        }
        for kind, result in layouts.items()
    }
    (folder / "layout.json").write_text(json.dumps(layout))


class _Counter:
    """Assigns consecutive numbers from 1 on."""

    def __init__(self) -> None:
        self._newest = 0

    def __call__(self, new: Sequence[object]) -> list[int]:
        first, self._newest = self._newest + 1, self._newest + len(new)
        return list(range(first, self._newest + 1))


def _block(hour: int, layout: CycleMatrix, cycles: Sequence[CycleMatrix], scrape_timing: _ScrapeTiming) -> bytes:
    """Packs an hour of one kind. Entities and signals stay the same all day: this fleet has no faults."""
    assert len(cycles) == CYCLES, f"{layout.kind} was missing in a cycle"
    for result in cycles:
        assert result.keys == layout.keys, layout.kind
        assert np.array_equal(result.entities, layout.entities), layout.kind
    values = np.stack([result.values for result in cycles], axis=-1)
    status = np.stack([result.status for result in cycles], axis=-1)
    scrape_timing.apply(layout.kind, layout.keys, values)
    first = round(START.timestamp()) + hour * CYCLES * round(STEP.total_seconds())
    times = (first + np.arange(CYCLES, dtype=np.int64) * round(STEP.total_seconds())) * 1_000_000
    spans = sections_of(layout.keys).values()
    return encode(times, [Section(values[begin:end], status[begin:end]) for _, begin, end in spans])


@dataclass(slots=True)
class _Targets:
    """Targets of one kind: the target of each entity, its position in the queue, its last scrape."""

    of_entity: NDArray[np.intp]
    place: NDArray[np.float64]
    last: NDArray[np.float64]


class _ScrapeTiming:
    """Effects of scraping on the values: scrape times, durations, and rates over that interval."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng([seed, 77])
        self._targets: dict[EntityKind, _Targets] = {}

    def apply(self, kind: EntityKind, keys: Sequence[SignalKey], values: Floats32) -> None:
        """Changes ``values`` of shape (keys, entities, times) in place; the last key is the scrape offset."""
        _, entities, times = values.shape
        if kind not in self._targets:
            of_entity = np.arange(entities) // GROUPS.get(kind, entities)
            place = self._random.uniform(0.0, _SPREAD_SECONDS, int(of_entity[-1]) + 1)
            self._targets[kind] = _Targets(of_entity, place, place)
        targets = self._targets[kind]
        jitter = self._random.normal(0.0, _JITTER_SECONDS, (targets.place.size, times))
        offsets = np.round(np.abs(targets.place[:, None] + jitter), 6)  # to the microsecond
        before = np.concatenate((targets.last[:, None], offsets[:, :-1]), axis=1)
        targets.last = offsets[:, -1]
        interval = 1.0 + (offsets - before) / STEP.total_seconds()
        took = SCRAPE_SECONDS * self._random.lognormal(0.0, _DURATION_SIGMA, offsets.shape)
        for place, key in enumerate(keys[:-1]):
            if key.name.endswith("_per_second"):
                values[place] /= interval[targets.of_entity]
            elif key.name == "target_scrape_seconds":
                values[place] = took[targets.of_entity]
        values[-1] = offsets[targets.of_entity]
