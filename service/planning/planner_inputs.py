"""Planner inputs per service: limits, replicas, engine load and start-up times."""

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
    Statistic,
    Window,
    signal_keys,
)
from outrider.placement import FreeGpus, free_gpus, most_replicas
from outrider.ports import MetricStore
from outrider.records.change_log import ChangeLog, Startup
from outrider.topology import Topology
from outrider.windows import believed
from planner.capacity import prescale
from planner.capacity.lead_time import LeadSettings, lead_time
from planner.performance import calibrate
from service.config.service_settings import ServiceSettings, setting_of
from service.planning import node_sizes, role_pools
from service.planning.closed_nodes import closed_nodes

_log = log.get("plan")
CALIBRATION_SPAN = timedelta(hours=24)
LONGER_SPAN = timedelta(days=8)  # if the load of the last day was too low, such as on a Sunday
CALIBRATION_STEPS = tuple(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10))
_MAX_CELLS = 30_000
ENGINE_LOAD_STEP = timedelta(minutes=10)
ENGINE_LOAD_KEYS = signal_keys(calibrate.RUNNING, calibrate.WAITING, calibrate.KV_USED)
STARTUP_SPAN = timedelta(days=14)
MAX_STARTUPS = 5000

ReplicaCount = Callable[[EntityRef, Topology], tuple[int, int]]
RecentReplicas = Callable[[EntityRef], tuple[tuple[datetime, int], ...]]
Message = tuple[str, dict[str, str]]


class PlannedFleet:
    """Builds the planner's inputs from the store, the change log and the configuration."""

    def __init__(
        self,
        metrics: MetricStore,
        services: Sequence[ServiceSettings],
        ready: ReplicaCount,
        lead: LeadSettings,
        change_log: ChangeLog | None = None,
        tests: Callable[[], Sequence[Calibration]] = tuple,
    ) -> None:
        """``ready`` returns (current, ready) replicas of a service; ``tests`` returns calibrations from load tests."""
        self._metrics, self._services, self._ready = metrics, services, ready
        self._tests = tests
        self._lead, self._change_log = lead, change_log

    def of(
        self, services: Sequence[EntityRef], topology: Topology, now: datetime, recent: RecentReplicas
    ) -> tuple[list[FleetService], dict[EntityRef, Calibration]]:
        """Returns every service, and the available calibrations. Raises StoreUnavailableError.

        An error of one service affects that service only: it gets no calibration, and the reason.
        """
        startups, tests = self._startups(now), self._known_tests()
        free = self._free_gpus(topology, now)
        sizes = node_sizes.node_sizes(topology)
        fleet, calibrations = [], {}
        for service in services:
            setting = self.setting_in(service, topology)
            gpu_type = gpu_type_of(service, setting, topology)
            replicas = topology.below(service, EntityKind.REPLICA)
            window = self._window(replicas, now, CALIBRATION_SPAN)
            calibration, reason = self._calibration(service, setting, window, gpu_type, topology, now)
            if replicas and (calibration is None or calibration.origin != "measured"):
                longer = self._window(replicas, now, LONGER_SPAN)
                measured, _ = self._calibration(service, setting, longer, gpu_type, topology, now)
                calibration, reason = (measured, None) if measured is not None else (calibration, reason)
            running = running_of(service, setting, topology)
            calibration, chosen = self._chosen(service, calibration, tests, running, now)
            if calibration is not None:
                calibrations[service], reason = calibration, None
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
                        calibration,
                        startups,
                        free.of(gpu_type, service.cluster),
                    ),
                    placeable_replicas=self._placeable(service, topology, free),
                    engines=self._engine_load(replicas, now),
                    recent=recent(service),
                    no_calibration=reason,
                    chosen=chosen,
                    gpus_per_node=per_node,
                    node_source=node_source,
                )
            )
        return fleet, calibrations

    def with_placement(self, fleet: list[FleetService], topology: Topology, now: datetime) -> list[FleetService]:
        """The same services with the replicas that can be placed now. Raises StoreUnavailableError."""
        if self._lead.node_provision is not None:
            return fleet
        free = self._free_gpus(topology, now)
        return [replace(item, placeable_replicas=self._placeable(item.service, topology, free)) for item in fleet]

    def _free_gpus(self, topology: Topology, now: datetime) -> FreeGpus:
        return free_gpus(topology, closed_nodes(self._metrics, topology, now))

    def _placeable(self, service: EntityRef, topology: Topology, free: FreeGpus) -> int | None:
        """Returns the replicas that can be placed; None while nodes are added, or if it is unknown."""
        if self._lead.node_provision is not None:
            return None
        setting = self.setting_in(service, topology)
        gpu_type = gpu_type_of(service, setting, topology)
        return most_replicas(service, topology, free, gpu_type, setting.gpus_per_replica)

    def _window(self, replicas: Sequence[EntityRef], now: datetime, span: timedelta) -> Window:
        return calibration_window(self._metrics, replicas, now, span)

    def _engine_load(self, replicas: Sequence[EntityRef], now: datetime) -> EngineLoad:
        """Returns the newest load of the engines."""
        since = now - max(prescale.NO_REVERSAL, prescale.FRESH_SLOTS * ENGINE_LOAD_STEP)
        window = self._metrics.read_windows(
            EntityKind.REPLICA, ENGINE_LOAD_KEYS, since, now, ENGINE_LOAD_STEP, replicas
        )
        return engine_load(window, now)

    def setting(self, service: EntityRef) -> ServiceSettings:
        """Returns the configuration of a service; an entry without a namespace applies to every namespace."""
        return setting_of(self._services, service)

    def _known_tests(self) -> Sequence[Calibration]:
        """Returns calibrations from load tests; none while they cannot be read."""
        try:
            return self._tests()
        except StoreError as error:
            _log.warning("load_tests_not_read", error=error.message)
            return ()

    @staticmethod
    def _chosen(
        service: EntityRef,
        configured: Calibration | None,
        tests: Sequence[Calibration],
        live: calibrate.RunningEngine,
        now: datetime,
    ) -> tuple[Calibration | None, Message | None]:
        """Returns the live calibration, else the best load test, else the configured one; and the reason."""
        if configured is not None and configured.origin == "measured":
            return configured, ("plan.counted_live", {"samples": str(configured.samples)})
        tested, unfit = calibrate.best_test(tests, service, now, live)
        arguments = {"n": str(len(unfit)), "why": ", ".join(sorted({reason for _, reason in unfit}))}
        if tested is not None and tested.measured_at is not None:
            startup = tested.startup_seconds if configured is None else configured.startup_seconds
            source = tested.startup_source if configured is None else configured.startup_source
            test_arguments = {
                "source": tested.source,
                "at": rfc3339(tested.measured_at),
                "samples": str(tested.samples),
            }
            used = replace(
                tested, service=service, startup_seconds=startup, startup_source=source,
                gpu_type=live.gpu_type or tested.gpu_type,
            )  # fmt: skip
            return used, ("plan.counted_test", test_arguments)
        if configured is None:
            return None, None
        return configured, ("plan.counted_configured_unfit" if unfit else "plan.counted_configured", arguments)

    def setting_in(self, service: EntityRef, topology: Topology) -> ServiceSettings:
        """Returns the configuration of a service or pool; TP and PP default to those of its engines."""
        parent = role_pools.parent_of(service, topology)
        own = self.setting(service)
        if parent is None:
            split = role_pools.split_of(service, topology)
            missing = {name: degree for name, degree in split.items() if name not in own.model_fields_set}
            return own.model_copy(update=missing) if missing else own
        return role_pools.setting_of(service, self.setting(parent), own if own in self._services else None, topology)

    def _quota(self, service: EntityRef, setting: ServiceSettings, topology: Topology) -> int | None:
        """Returns the quota of a service; a pool without its own quota shares that of its service."""
        parent = role_pools.parent_of(service, topology)
        if parent is None or "quota_gpus" in self.setting(service).model_fields_set:
            return setting.quota_gpus
        pools = [pool for pool in role_pools.planned(topology) if role_pools.parent_of(pool, topology) == parent]
        used = {}
        for pool in pools:
            replicas = topology.below(pool, EntityKind.REPLICA)
            used[pool] = self.setting_in(pool, topology).gpus_per_replica * len(replicas)
        return role_pools.share_of_quota(setting.quota_gpus, used[service], sum(used.values()), len(pools))

    def _startups(self, now: datetime) -> tuple[Startup, ...]:
        """Returns the start-ups known at ``now``; none while they cannot be read, so the configured time applies."""
        if self._change_log is None:
            return ()
        try:
            startups = self._change_log.startups(since=now - STARTUP_SPAN, limit=MAX_STARTUPS)
        except StoreError as error:
            _log.warning("starts_not_read", error=error.message)
            return ()
        return tuple(
            start for start in startups if start.began_at <= now and (start.ready_at is None or start.ready_at <= now)
        )

    def _lead_of(
        self,
        service: tuple[EntityRef, EntityRef | None],
        setting: ServiceSettings,
        calibration: Calibration | None,
        startups: Sequence[Startup],
        free: int | None,
    ) -> LeadTime:
        """Returns the lead time from the start-ups of the service, or of the service that a pool belongs to.

        With too few start-ups it is the configured time or the calibration's prior.
        """
        names = [entity.name for entity in service if entity is not None]
        by_name = [[start for start in startups if name in (start.service, start.workload)] for name in names]
        own = next((starts for starts in by_name if starts), [])
        is_configured = "startup" in setting.model_fields_set or calibration is None
        seconds = (
            setting.startup.total_seconds() if calibration is None or is_configured else calibration.startup_seconds
        )
        return lead_time(
            own,
            configured_seconds=seconds,
            configured_source="configured" if is_configured else "prior",
            gpus_free=free,
            gpus_needed=setting.gpus_per_replica,
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
    ) -> tuple[Calibration | None, Message | None]:
        """Returns a calibration, with configured figures before measured ones; else the reason for none."""
        try:
            calibration = calibrated(service, setting, window, gpu_type)
        except StoreUnavailableError:
            raise
        except (OutriderError, ValueError, ArithmeticError) as error:
            message = error.message if isinstance(error, OutriderError) else str(error)
            return None, ("plan.failed", {"error": message[:200]})
        if isinstance(calibration, calibrate.NoCalibration):
            return None, (f"plan.refused_{calibration.reason.value}", dict(calibration.arguments))
        if calibration.origin != "measured":
            return calibration, None
        members = (service, *window.entities)
        return replace(
            calibration,
            model=_common_label(topology, members, "model"),
            engine_version=_common_label(topology, members, "version") or _common_label(topology, members, "image"),
            measured_at=now,
        ), None


def running_of(service: EntityRef, setting: ServiceSettings, topology: Topology) -> calibrate.RunningEngine:
    """Returns the running engine of a service, from the topology and the configuration."""
    members = (service, *topology.below(service, EntityKind.REPLICA))
    return calibrate.RunningEngine(
        gpu_type_of(service, setting, topology),
        setting.tensor_parallel,
        setting.pipeline_parallel,
        _common_label(topology, members, "model"),
        _common_label(topology, members, "version") or _common_label(topology, members, "image"),
    )


def calibration_window(metrics: MetricStore, replicas: Sequence[EntityRef], now: datetime, span: timedelta) -> Window:
    """Reads the window of a calibration, in the shortest step with at most 30,000 cells a signal (at most 10 minutes).

    Gauges are means over a step, because its tokens belong to all sequences that ran in it.
    """
    fits = (step for step in CALIBRATION_STEPS if len(replicas) * (span / step) <= _MAX_CELLS)
    step = next(fits, CALIBRATION_STEPS[-1])
    return metrics.read_windows(
        EntityKind.REPLICA, calibrate.KEYS, now - span, now, step, replicas, statistic=Statistic.MEAN
    )


def calibrated(
    service: EntityRef, setting: ServiceSettings, window: Window, gpu_type: str
) -> Calibration | calibrate.NoCalibration:
    """Calibrates one service from its settings and a window of its replicas, or returns the refusal."""
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


def engine_load(window: Window, now: datetime) -> EngineLoad:
    """Sums the load of the engines: the newest trusted values, and the highest KV-cache usage of half an hour."""
    fresh = window.times >= (now - prescale.FRESH_SLOTS * window.step).timestamp()

    def newest(name: str) -> float | None:
        values = believed(window, name)[:, fresh]
        known = ~np.isnan(values)
        if not known.any():
            return None
        last = values.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1)
        latest = values[np.arange(values.shape[0]), last]
        return float(np.nansum(latest[known.any(axis=1)]))

    recent = window.times >= (now - prescale.NO_REVERSAL).timestamp()
    kv = believed(window, calibrate.KV_USED)[:, recent]
    summed = np.nansum(kv, axis=0)[~np.isnan(kv).all(axis=0)] if kv.size else np.empty(0)
    return EngineLoad(
        newest(calibrate.RUNNING), newest(calibrate.WAITING), float(summed.max()) if summed.size else None
    )


def gpu_type_of(service: EntityRef, setting: ServiceSettings, topology: Topology) -> str:
    """Returns the configured GPU type, else the type that all replicas share."""
    if setting.gpu_type != "unknown":
        return setting.gpu_type
    types = {topology.label(replica, "gpu_type") for replica in topology.below(service, EntityKind.REPLICA)} - {""}
    return types.pop() if len(types) == 1 else "unknown"


def _common_label(topology: Topology, entities: Iterable[EntityRef], label: str) -> str:
    """Returns the label that all entities share; empty while they differ, such as during a rollout."""
    values = {topology.label(entity, label) for entity in entities} - {""}
    return values.pop() if len(values) == 1 else ""
