"""A fleet with all sorts of normal changes and without faults, as a source for cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from benchmarks.fleet.batches import SCRAPE_SECONDS, Sampler
from collectors.mapping import target as configured
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from collectors.scrape.target_health import TargetHealth
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef, Event, SampleBatch, SignalKey, Statistic, Window
from outrider.ports import Collected
from simulator.exporters.targets import Pages, targets
from simulator.fleet import Fleet
from simulator.spec.fleets import FleetSpec, Lengths, PoolSpec, TenantSpec, TrafficSpec, default_spec

EVENTS_KEPT_FOR = timedelta(hours=2)
SLICE_SECONDS = 15.0

# Long outputs, as of agents and reasoning models: few requests/s, so that a week takes minutes.
_LENGTHS = (Lengths(1500, 0.7, 2000, 0.5, 0.45), Lengths(3000, 0.6, 2400, 0.5, 0.6))

# Every peak fits on one replica less; otherwise it would be a real surge. Bursts reach three times the usual load, a
# launch 1.3 times, and a rollout takes one of nine replicas down. KV blocks are ample: batches fill before the cache.
KV_BLOCKS = 36_864
_LOADS = (
    ("chat", 0, 2, TrafficSpec(shape="launch-day", peak_ratio=0.4)),
    ("assist", 0, 2, TrafficSpec(shape="holiday", peak_ratio=0.45, peak_hour=10.0)),
    ("search", 0, 2, TrafficSpec(shape="bursty", peak_ratio=0.2)),
    ("code", 1, 2, TrafficSpec(shape="mix-shift", peak_ratio=0.4, peak_hour=15.5)),
    ("batch", 1, 1, TrafficSpec(shape="steady", peak_ratio=0.4)),
    ("agent", 1, 1, TrafficSpec(shape="weekly", peak_ratio=0.45, trough_ratio=0.1)),
)


@dataclass(frozen=True, slots=True)
class Quiet:
    """A fleet and its number of scrape targets."""

    spec: FleetSpec
    targets: int


def quiet(cluster: str, replicas: int) -> Quiet:
    """Returns six services with ``replicas`` replicas each, under six loads, on the nodes they need and two spare."""
    known, gpu_type = default_spec(), default_spec().pools[0].gpu_type
    services = tuple(
        replace(
            known.services[model],
            name=name,
            engine=replace(known.services[model].engine, kv_blocks=KV_BLOCKS),
            lengths=_LENGTHS[model],
            tensor_parallel=group,
            replicas=replicas,
            ceiling=replicas,
            traffic=traffic,
            tenants=_tenants(_LENGTHS[model]),
        )
        for name, model, group, traffic in _LOADS
    )
    gpus = sum(service.replicas * service.tensor_parallel for service in services)
    nodes = -(-gpus // 8) + 2
    spec = FleetSpec(
        cluster,
        (PoolSpec("quiet", gpu_type, nodes),),
        services,
        slice_seconds=SLICE_SECONDS,
        tick_seconds=SLICE_SECONDS,
    )
    return Quiet(spec, len(targets(Fleet(spec))))


def _tenants(usual: Lengths) -> tuple[TenantSpec, ...]:
    longer = replace(usual, prompt_mean=usual.prompt_mean * 1.3, output_mean=usual.output_mean * 0.8)
    return (TenantSpec("web", 0.7), TenantSpec("documents", 0.3, longer))


class QuietSource:
    """Signals directly from the fleet; the topology is read from its pages after each pod change."""

    def __init__(self, fleet: Fleet) -> None:
        """``fleet`` is advanced elsewhere; this class only reads it."""
        self._fleet, self._sampler, self._pages = fleet, Sampler(fleet), Pages(fleet)
        self._collector = ScrapeManager([])
        self._placed: tuple[object, ...] = ()

    @property
    def health(self) -> list[TargetHealth]:
        """Returns the health of each target, as of the last pod change."""
        return self._collector.health

    async def collect(self, at: datetime) -> Collected:
        """Collects one cycle."""
        return self.collect_now(at)

    def collect_now(self, at: datetime) -> Collected:
        """Collects one cycle."""
        placed = tuple((pod.phase, pod.node, pod.gpus) for pod in self._fleet.pods.pods)
        if placed != self._placed:
            self._placed = placed
            self._read_pages(at)
        return replace(self._sampler.collected(at), topology=self._collector.topology(at))

    async def close(self) -> None:
        """Does nothing: no resource is open."""

    def _read_pages(self, at: datetime) -> None:
        listed = targets(self._fleet)
        documents = [one.as_config(f"http://fleet.invalid{one.path}") for one in listed]
        known = configured.targets_of(self._fleet.spec.cluster, documents)
        if known != self._collector.targets:
            self._collector.set_targets(known)
        self._collector.absorb(
            [_scrape(target, self._pages.page(one), at) for target, one in zip(known, listed, strict=True)], at
        )


def _scrape(target: configured.Target, body: bytes | None, at: datetime) -> Scrape:
    error = None
    if body is None:
        error = CollectError(f"{target.name} refuses connections", reason=CollectReason.REFUSED)
    return Scrape(target, at, body, error, SCRAPE_SECONDS)


class RecentEvents:
    """A metric store that counts values and keeps only the events of the last hours."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def write(self, at: datetime, batches: Sequence[SampleBatch], events: Sequence[Event] = ()) -> int:
        """Counts the values and keeps the events."""
        known = {event.dedup_key or event.id for event in self._events}
        new = [event for event in events if (event.dedup_key or event.id) not in known]
        self._events = [event for event in (*self._events, *new) if event.at > at - EVENTS_KEPT_FOR]
        return sum(batch.values.size for batch in batches)

    def events(self, start: datetime, end: datetime, entity: EntityRef | None = None) -> tuple[Event, ...]:
        """Returns events in [start, end), oldest first."""
        inside = [event for event in self._events if start <= event.at < end]
        return tuple(event for event in sorted(inside, key=lambda one: one.at) if entity in (None, event.entity))

    def read_windows(
        self,
        kind: EntityKind,
        keys: Sequence[SignalKey],
        start: datetime,
        end: datetime,
        step: timedelta,
        entities: Sequence[EntityRef] | None = None,
        *,
        statistic: Statistic = Statistic.LAST,
    ) -> Window:
        """Nothing is kept to be read."""
        raise NotImplementedError("this store keeps no values")

    def latest(self, kind: EntityKind, keys: Sequence[SignalKey] | None = None) -> Window:
        """Nothing is kept to be read."""
        raise NotImplementedError("this store keeps no values")

    def entities(self, kind: EntityKind) -> tuple[EntityRef, ...]:
        """Nothing is kept to be read."""
        raise NotImplementedError("this store keeps no values")

    def close(self) -> None:
        """Clears the events."""
        self._events.clear()
