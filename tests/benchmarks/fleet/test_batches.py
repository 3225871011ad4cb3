"""The sampler against pages and collectors: cell by cell, value and status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from benchmarks.fleet.batches import SCRAPE_SECONDS, Sampler
from benchmarks.fleet.sheets import FELL, LastCounters, Sheet, ratio
from collectors.mapping import target as configured
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey
from simulator.exporters.targets import Pages, Status, targets
from simulator.faults import inject
from simulator.fleet import Fleet
from simulator.spec.fleets import FleetSpec, default_spec

STEP = timedelta(seconds=15)
NOT_IN_IT = {"target_samples", "target_scrape_seconds"}
# Trust in a page, tokens of tenants, and limits from the control plane: the sampler has none of them.
OF_PAGES = {"target_trust_code", "tenant_prompt_tokens_total", "container_memory_limit_bytes"}
# Pages show rounded numbers, so increases over one scrape differ by the rounding.
LOOSE = {
    "node_cpu_utilization_ratio": 2e-3,
    "node_disk_busy_ratio": 2e-4,
    "node_network_bytes_per_second": 1.0,
    "hw_accel_energy_joules_total": 1e-2,
}
REASONS = {
    Status.REFUSED: CollectReason.REFUSED,
    Status.TIMEOUT: CollectReason.TIMEOUT,
    Status.HTTP_503: CollectReason.HTTP_STATUS,
}
Cells = dict[tuple[EntityRef, SignalKey], tuple[float, int]]


def small() -> FleetSpec:
    spec = default_spec()
    return replace(spec, services=tuple(replace(service, replicas=3, ceiling=4) for service in spec.services))


def cells(batches: Iterable[SampleBatch]) -> Cells:
    """Merged cells: of several values of one cell, the one with the best status counts."""
    result: Cells = {}
    for batch in batches:
        for row, entity in enumerate(batch.entities):
            for column, key in enumerate(batch.keys):
                cell = float(batch.values[row, column]), int(batch.status[row, column])
                known = result.get((entity, key))
                if known is None or cell[1] < known[1]:
                    result[entity, key] = cell
    return result


class Both:
    """One fleet, read twice: by collectors from its pages, and by the sampler."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.pages, self.sampler, self.collector = Pages(fleet), Sampler(fleet), ScrapeManager([])

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.fleet.step(STEP)

    def collect(self) -> tuple[Cells, Cells]:
        listed = targets(self.fleet)
        documents = [target.as_config("http://fleet.invalid/metrics") for target in listed]
        known = configured.targets_of(self.fleet.spec.cluster, documents)
        if known != self.collector.targets:
            self.collector.set_targets(known)
        scrapes = []
        for target, simulated in zip(known, listed, strict=True):
            answer = self.pages.answer(simulated)
            error = None if answer.body is not None else CollectError("no page", reason=REASONS[answer.status])
            probed = target.probe
            health, load = (answer.health, answer.load) if probed else (None, None)
            scrapes.append(
                Scrape(target, self.fleet.now, answer.body, error, SCRAPE_SECONDS, health, load, probed=probed)
            )
        collected = self.collector.absorb(scrapes, self.fleet.now)
        return cells(collected.batches), cells(self.sampler.batches())


def different(pages: Cells, sampled: Cells) -> list[str]:
    """Differences of the two; a column that the sampler does not have is ABSENT."""
    wrong = []
    for cell in pages.keys() | sampled.keys():
        entity, key = cell
        if key.name in OF_PAGES:
            continue
        value, status = pages.get(cell, (np.nan, CellStatus.ABSENT))
        ours, our_status = sampled.get(cell, (np.nan, CellStatus.ABSENT))
        if key.name in NOT_IN_IT and status == our_status == CellStatus.PRESENT:
            continue
        tolerance = LOOSE.get(key.name, 1e-6)
        same = (np.isnan(value) and np.isnan(ours)) or abs(value - ours) <= tolerance + 1e-6 * abs(value)
        if not same or status != our_status:
            wrong.append(
                f"{entity} {key}: {value} {CellStatus(status).name}, sampled {ours} {CellStatus(our_status).name}"
            )
    return sorted(wrong)


@pytest.mark.slow
def test_every_signal_of_a_quiet_fleet_is_the_same() -> None:
    both = Both(Fleet(small(), 3))
    for _ in range(3):
        pages, sampled = both.collect()
        assert different(pages, sampled) == []
        both.step()
    assert len(sampled) > 1000
    kinds = {entity.kind for entity, _ in sampled}
    assert kinds >= {EntityKind.REPLICA, EntityKind.GPU, EntityKind.NODE, EntityKind.PORT, EntityKind.POD}
    assert kinds >= {EntityKind.SERVICE, EntityKind.WORKLOAD, EntityKind.CLUSTER}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["engine-hung", "gpu-lost", "exporter-down", "node-lost", "planned-rollout"])
def test_every_signal_of_a_broken_fleet_is_the_same(fault: str) -> None:
    both = Both(Fleet(small(), 3))
    both.collect()
    both.step()
    both.collect()
    inject(both.fleet, fault, duration=timedelta(seconds=70), seed=2)
    for _ in range(9):
        both.step()
        pages, sampled = both.collect()
        assert different(pages, sampled) == []


def test_a_decreased_counter_has_no_increase() -> None:
    counters = LastCounters(2)
    both = np.array([True, True])
    counters.compare(0.0, both, np.array([[5.0, 5.0], [5.0, 5.0]]))
    grown = counters.compare(10.0, both, np.array([[3.0, 9.0], [6.0, 5.0]]))
    assert grown.increases.tolist() == [[FELL, 4.0], [1.0, 0.0]]
    sheet = Sheet(EntityKind.GPU, "x", {}, {"hw_accel_throttle_power_ratio": ratio(*grown.increases.T)})
    _, values, status = sheet.cells(grown.status)
    assert np.isnan(values[:, 0]).all()
    assert status[:, 0].tolist() == [CellStatus.RESET, CellStatus.UNDEFINED]


def test_a_missed_cycle_makes_the_interval_longer() -> None:
    fleet = Fleet(small(), 3)
    sampler = Sampler(fleet)
    sampler.batches()
    fleet.step(STEP)
    fleet.exporters_down.add("node-0")
    sampler.batches()
    fleet.step(STEP)
    fleet.exporters_down.clear()
    hosts = [batch for batch in sampler.batches() if batch.source == "nodes" and batch.kind is EntityKind.NODE]
    seconds = {entity.name: batch.interval_seconds for batch in hosts for entity in batch.entities}
    assert seconds["node-0"] == 30
    assert seconds["node-1"] == 15
