"""The services as the planner is told of them: limits, replicas, what their engines hold, and how they start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from outrider import log
from outrider.clock import rfc3339
from outrider.errors import OutriderError, StoreError, StoreUnavailableError
from outrider.model import (
    Calibration,
    EngineLoad,
    EntityKind,
    EntityRef,
    FleetService,
    LeadTime,
    SignalKey,
    Statistic,
    Window,
)
from outrider.ports import MetricStore
from outrider.records.change_log import ChangeLog, Startup
from outrider.topology import Topology
from outrider.windows import believed
from planner.capacity import prescale
from planner.capacity.lead_time import LeadSettings, lead_time
from planner.performance import calibrate
from service.config.service_settings import ServiceSettings, setting_of
from service.planning import node_sizes, role_pools

_log = log.get("plan")
CALIBRATION_SPAN = timedelta(hours=24)
LONGER_SPAN = timedelta(days=8)  # where the last day showed no load worth measuring, as on a Sunday
CALIBRATION_STEPS = tuple(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10))
_MOST_CELLS = 30_000
HELD_STEP = timedelta(minutes=10)
HELD_KEYS = tuple(SignalKey(name) for name in (calibrate.RUNNING, calibrate.WAITING, calibrate.KV_USED))
STARTS_LOOKED_BACK = timedelta(days=14)
MOST_STARTS = 5000

ReplicaCount = Callable[[EntityRef, Topology], tuple[int, int]]
Lately = Callable[[EntityRef], tuple[tuple[datetime, int], ...]]
Told = tuple[str, dict[str, str]]


class PlannedFleet:
    """Makes the planner's input from the store, the ledger and the configuration."""

    def __init__(
        self,
        metrics: MetricStore,
        services: Sequence[ServiceSettings],
        ready: ReplicaCount,
        lead: LeadSettings,
        ledger: ChangeLog | None = None,
        tests: Callable[[], Sequence[Calibration]] = tuple,
    ) -> None:
        """``ready`` gives (current, ready) replicas of a service, ``tests`` what load tests say."""
        self._metrics, self._services, self._ready = metrics, services, ready
        self._tests = tests
        self._lead, self._ledger = lead, ledger

    def of(
        self, services: Sequence[EntityRef], topology: Topology, now: datetime, lately: Lately
    ) -> tuple[list[FleetService], dict[EntityRef, Calibration]]:
        """Every service, and the calibrations there are. Raises StoreUnavailableError.

        What is wrong with one service is said of it alone: it gets no calibration, and the reason.
        """
        starts, free, tests = self._starts(now), free_gpus(topology), self._known_tests()
        sizes = node_sizes.node_sizes(topology)
        fleet, calibrations = [], {}
        for service in services:
            setting = self.setting_in(service, topology)
            gpu_type = gpu_type_of(service, setting, topology)
            replicas = topology.below(service, EntityKind.REPLICA)
            window = self._window(replicas, now, CALIBRATION_SPAN)
            found, why = self._calibration(service, setting, window, gpu_type, topology, now)
            if replicas and (found is None or found.origin != "measured"):
                longer = self._window(replicas, now, LONGER_SPAN)
                measured, _ = self._calibration(service, setting, longer, gpu_type, topology, now)
                found, why = (measured, None) if measured is not None else (found, why)
            found, chosen = self._chosen(service, found, tests, running_of(service, setting, topology), now)
            if found is not None:
                calibrations[service], why = found, None
            current, ready = self._ready(service, topology)
            per_node, node_source = node_sizes.node_of(gpu_type, setting, sizes)
            fleet.append(
                FleetService(
                    service=service,
                    gpu_type=gpu_type,
                    current_replicas=current,
                    ready_replicas=ready,
                    floor=setting.floor,
                    ceiling=setting.ceiling,
                    price_per_gpu_hour=setting.price_per_gpu_hour,
                    currency=setting.currency,
                    quota_gpus=self._quota(service, setting, topology),
                    lead=self._lead_of(
                        (service, role_pools.parent_of(service, topology)),
                        setting,
                        found,
                        starts,
                        free.get(gpu_type, free.get("")),
                    ),
                    engines=self._held(replicas, now),
                    lately=lately(service),
                    no_calibration=why,
                    chosen=chosen,
                    gpus_per_node=per_node,
                    node_source=node_source,
                )
            )
        return fleet, calibrations

    def _window(self, replicas: Sequence[EntityRef], now: datetime, span: timedelta) -> Window:
        return calibration_window(self._metrics, replicas, now, span)

    def _held(self, replicas: Sequence[EntityRef], now: datetime) -> EngineLoad:
        """What the engines hold, by their newest values."""
        since = now - max(prescale.NO_REVERSAL, prescale.FRESH_SLOTS * HELD_STEP)
        return held_by(self._metrics.read_windows(EntityKind.REPLICA, HELD_KEYS, since, now, HELD_STEP, replicas), now)

    def setting(self, service: EntityRef) -> ServiceSettings:
        """What the configuration says of a service; one without a namespace speaks for every namespace."""
        return setting_of(self._services, service)

    def _known_tests(self) -> Sequence[Calibration]:
        """What load tests say; none while they cannot be read."""
        try:
            return self._tests()
        except StoreError as error:
            _log.warning("load_tests_not_read", error=error.message)
            return ()

    @staticmethod
    def _chosen(
        service: EntityRef,
        found: Calibration | None,
        tests: Sequence[Calibration],
        live: calibrate.RunningEngine,
        now: datetime,
    ) -> tuple[Calibration | None, Told | None]:
        """Live under load, else the best load test, else what is configured; and why that one."""
        if found is not None and found.origin == "measured":
            return found, ("plan.counted_live", {"samples": str(found.samples)})
        tested, unfit = calibrate.best_test(tests, service, now, live)
        told = {"n": str(len(unfit)), "why": ", ".join(sorted({reason for _, reason in unfit}))}
        if tested is not None and tested.measured_at is not None:
            startup = tested.startup_seconds if found is None else found.startup_seconds
            source = tested.startup_source if found is None else found.startup_source
            said = {"source": tested.source, "at": rfc3339(tested.measured_at), "samples": str(tested.samples)}
            used = replace(
                tested, service=service, startup_seconds=startup, startup_source=source,
                gpu_type=live.gpu_type or tested.gpu_type,
            )  # fmt: skip
            return used, ("plan.counted_test", said)
        if found is None:
            return None, None
        return found, ("plan.counted_configured_unfit" if unfit else "plan.counted_configured", told)

    def setting_in(self, service: EntityRef, topology: Topology) -> ServiceSettings:
        """What the configuration says of a service or of a pool of one; how it is split, else by its engines."""
        parent = role_pools.parent_of(service, topology)
        own = self.setting(service)
        if parent is None:
            split = role_pools.split_of(service, topology)
            unsaid = {name: degree for name, degree in split.items() if name not in own.model_fields_set}
            return own.model_copy(update=unsaid) if unsaid else own
        return role_pools.setting_of(service, self.setting(parent), own if own in self._services else None, topology)

    def _quota(self, service: EntityRef, setting: ServiceSettings, topology: Topology) -> int | None:
        """The quota of a service; a pool shares that of its service, unless it has one of its own."""
        parent = role_pools.parent_of(service, topology)
        if parent is None or "quota_gpus" in self.setting(service).model_fields_set:
            return setting.quota_gpus
        siblings = [one for one in role_pools.planned(topology) if role_pools.parent_of(one, topology) == parent]
        held = {}
        for one in siblings:
            split = self.setting_in(one, topology)
            group = split.tensor_parallel * split.pipeline_parallel
            held[one] = group * len(topology.below(one, EntityKind.REPLICA))
        return role_pools.share_of_quota(setting.quota_gpus, held[service], sum(held.values()), len(siblings))

    def _starts(self, now: datetime) -> tuple[Startup, ...]:
        """The starts known at an instant; none while they cannot be read: the configured time counts then."""
        if self._ledger is None:
            return ()
        try:
            found = self._ledger.startups(since=now - STARTS_LOOKED_BACK, limit=MOST_STARTS)
        except StoreError as error:
            _log.warning("starts_not_read", error=error.message)
            return ()
        return tuple(one for one in found if one.began_at <= now and (one.ready_at is None or one.ready_at <= now))

    def _lead_of(
        self,
        service: tuple[EntityRef, EntityRef | None],
        setting: ServiceSettings,
        calibration: Calibration | None,
        starts: Sequence[Startup],
        free: int | None,
    ) -> LeadTime:
        """Of the service's own starts, or those of the service that it is a pool of.

        Configured, or the calibration's prior, where too few are known.
        """
        names = [one.name for one in service if one is not None]
        known = [[one for one in starts if name in (one.service, one.workload)] for name in names]
        own = next((found for found in known if found), [])
        given = "startup" in setting.model_fields_set or calibration is None
        seconds = setting.startup.total_seconds() if calibration is None or given else calibration.startup_seconds
        return lead_time(
            own,
            configured_seconds=seconds,
            configured_source="configured" if given else "prior",
            gpus_free=free,
            gpus_needed=setting.tensor_parallel * setting.pipeline_parallel,
            settings=self._lead,
        )

    def _calibration(
        self,
        service: EntityRef,
        setting: ServiceSettings,
        window: Window,
        gpu_type: str,
        topology: Topology,
        now: datetime,
    ) -> tuple[Calibration | None, Told | None]:
        """What the configuration fixes, the rest measured; else why too little is known."""
        try:
            found = calibrated(service, setting, window, gpu_type)
        except StoreUnavailableError:
            raise
        except (OutriderError, ValueError, ArithmeticError) as error:
            said = error.message if isinstance(error, OutriderError) else str(error)
            return None, ("plan.failed", {"error": said[:200]})
        if isinstance(found, calibrate.NoCalibration):
            return None, (f"plan.refused_{found.reason.value}", dict(found.arguments))
        if found.origin != "measured":
            return found, None
        members = (service, *window.entities)
        return replace(
            found,
            model=_told(topology, members, "model"),
            engine_version=_told(topology, members, "version") or _told(topology, members, "image"),
            measured_at=now,
        ), None


def running_of(service: EntityRef, setting: ServiceSettings, topology: Topology) -> calibrate.RunningEngine:
    """What runs of a service, as the topology and the configuration know it."""
    members = (service, *topology.below(service, EntityKind.REPLICA))
    return calibrate.RunningEngine(
        gpu_type_of(service, setting, topology),
        setting.tensor_parallel,
        setting.pipeline_parallel,
        _told(topology, members, "model"),
        _told(topology, members, "version") or _told(topology, members, "image"),
    )


def calibration_window(metrics: MetricStore, replicas: Sequence[EntityRef], now: datetime, span: timedelta) -> Window:
    """What a calibration reads, in the shortest steps that stay within 30,000 cells a signal (10 minutes at most).

    Gauges are means of a step, because its tokens belong to all that ran in it.
    """
    fits = (step for step in CALIBRATION_STEPS if len(replicas) * (span / step) <= _MOST_CELLS)
    step = next(fits, CALIBRATION_STEPS[-1])
    return metrics.read_windows(
        EntityKind.REPLICA, calibrate.KEYS, now - span, now, step, replicas, statistic=Statistic.MEAN
    )


def calibrated(
    service: EntityRef, setting: ServiceSettings, window: Window, gpu_type: str
) -> Calibration | calibrate.NoCalibration:
    """One service's calibration from its settings and a window of its replicas, or why there is none."""
    configured = calibrate.ConfiguredFigures(
        tokens_per_request=setting.tokens_per_request,
        batch=setting.batch,
        tokens_per_second_per_sequence=setting.tokens_per_second_per_sequence,
        startup_seconds=setting.startup.total_seconds(),
    )
    return calibrate.calibrate(
        window,
        service,
        gpu_type=gpu_type,
        tensor_parallel=setting.tensor_parallel,
        pipeline_parallel=setting.pipeline_parallel,
        configured=configured,
    )


def held_by(window: Window, now: datetime) -> EngineLoad:
    """What the engines hold, summed over replicas: the newest believed values, KV the highest of half an hour."""
    fresh = window.times >= (now - prescale.FRESH_SLOTS * window.step).timestamp()

    def newest(name: str) -> float | None:
        values = believed(window, name)[:, fresh]
        known = ~np.isnan(values)
        if not known.any():
            return None
        last = values.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1)
        found = values[np.arange(values.shape[0]), last]
        return float(np.nansum(found[known.any(axis=1)]))

    recent = window.times >= (now - prescale.NO_REVERSAL).timestamp()
    kv = believed(window, calibrate.KV_USED)[:, recent]
    summed = np.nansum(kv, axis=0)[~np.isnan(kv).all(axis=0)] if kv.size else np.empty(0)
    return EngineLoad(
        newest(calibrate.RUNNING), newest(calibrate.WAITING), float(summed.max()) if summed.size else None
    )


def free_gpus(topology: Topology) -> dict[str, int | None]:
    """GPUs by type that hold up no pod; key "" is all of them. Empty where the topology knows no GPU."""
    gpus = topology.of_kind(EntityKind.GPU)
    if not gpus:
        return {}
    found: dict[str, int | None] = {"": 0}
    for gpu in gpus:
        nodes = topology.below(gpu, EntityKind.NODE)
        name = topology.label(gpu, "gpu_type") or next((topology.label(node, "gpu_type") for node in nodes), "")
        used = any(one.kind in (EntityKind.POD, EntityKind.REPLICA) for one in topology.holds_up(gpu))
        for key in {name, ""}:
            found[key] = (found.get(key) or 0) + (0 if used else 1)
    return found


def gpu_type_of(service: EntityRef, setting: ServiceSettings, topology: Topology) -> str:
    """The configured type, else the one that all replicas say."""
    if setting.gpu_type != "unknown":
        return setting.gpu_type
    types = {topology.label(replica, "gpu_type") for replica in topology.below(service, EntityKind.REPLICA)} - {""}
    return types.pop() if len(types) == 1 else "unknown"


def _told(topology: Topology, entities: Iterable[EntityRef], label: str) -> str:
    """What the topology says of all of them; nothing while they differ, as during a rollout."""
    said = {topology.label(entity, label) for entity in entities} - {""}
    return said.pop() if len(said) == 1 else ""
