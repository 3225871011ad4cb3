"""Builds the planner of a configuration, and runs it once for a command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outrider.model import CycleRecord, EntityKind, EntityRef, Plan, SignalKey, Window
from outrider.ports import MetricStore, StateStore
from outrider.records.change_log import ChangeLog
from outrider.topology import Topology
from planner.forecast.calendar import HOLIDAY
from remediation.decide.context import STARTS_WITHIN
from service.config.planner_settings import LoadEventSettings, PlannerSettings
from service.config.settings import Settings
from service.engine import fleet_state
from service.engine.detector_memory import Detection
from service.engine.situation import situation
from service.planning import role_pools
from service.planning.planning import Planning
from service.planning.slo_inputs import PlanOverrides, SloInputs
from service.wiring.stores import open_change_log, stores


@dataclass(frozen=True, slots=True)
class _StoredValues:
    """Recent values of the store up to an instant, as an engine has them in memory."""

    metrics: MetricStore
    at: datetime
    interval: timedelta

    def window(self, kind: EntityKind, keys: Sequence[SignalKey], span: timedelta) -> Window:
        """Returns the values of ``span`` before the instant, oldest first."""
        end = self.at + timedelta(seconds=1)
        return self.metrics.read_windows(kind, keys, end - span, end, self.interval)


def planning(
    settings: Settings,
    detection: Detection,
    state: StateStore,
    metrics: MetricStore,
    *,
    change_log: ChangeLog | None,
    in_background: bool,
) -> Planning:
    """Returns the planner of an engine. Ready replicas are counted from the recent values of ``detection``."""

    def count(service: EntityRef, topology: Topology) -> tuple[int, int]:
        return fleet_state.replicas(service, topology, detection, fleet_state.active_alerts(state))

    return Planning(
        metrics,
        with_holidays(settings),
        settings.services,
        count,
        in_background=in_background,
        change_log=change_log,
        tests=state.load_tests,
        slo_inputs=SloInputs(settings.slos, settings.cluster),
    )


def with_holidays(settings: Settings) -> PlannerSettings:
    """Settings of the planner with the listed holidays as events of the same name as those of a country."""
    spans = settings.detect.holidays_in(settings.zone)
    listed = [LoadEventSettings(name=HOLIDAY, start=start, end=end) for start, end in spans]
    return settings.planner.model_copy(update={"events": [*settings.planner.events, *listed]})


def plan_now(settings: Settings, at: datetime | None, overrides: PlanOverrides | None = None) -> Plan:
    """Returns a new plan from the store, as of the newest cycle or ``at``.

    ``overrides`` holds the SLOs of a command, which override those of the configuration.
    """
    with stores(settings) as (state, metrics):
        newest: tuple[CycleRecord, ...] = state.cycles(limit=1)
        if at is None and not newest:
            return Plan()
        as_of = at or newest[0].at
        # replicas and faults of that time, not of now
        topology = state.topology() if at is None else state.topology(at)
        active = fleet_state.active_alerts(state) if at is None else fleet_state.alerts_at(state, at)

        def count(service: EntityRef, known: Topology) -> tuple[int, int]:
            members = known.below(service, EntityKind.REPLICA)
            broken = {alert.entity for alert in active if alert.fault in fleet_state.NOT_SERVING}
            return len(members), len(set(members) - broken)

        change_log = open_change_log(settings)
        try:
            planner = Planning(
                metrics, with_holidays(settings), settings.services, count,
                change_log=change_log, with_hindsight=False, tests=state.load_tests,
                slo_inputs=SloInputs(settings.slos, settings.cluster, overrides or PlanOverrides()),
            )  # fmt: skip
            known = role_pools.with_pools(topology)
            values = _StoredValues(metrics, as_of, settings.collect.interval)
            ready = {service: count(service, known)[1] for service in known.of_kind(EntityKind.SERVICE)}
            if at is None:  # a replica that starts has no successful scrape yet
                up = fleet_state.ready_replicas(known, values, active)
                ready = {service: up[service] or replicas for service, replicas in ready.items()}
            actions = fleet_state.actions_since(state, as_of - STARTS_WITHIN) if at is None else ()
            present = situation(known, values, ready, (), actions, as_of)
            return planner.plan_if_due(as_of, topology, present) or Plan()
        finally:
            change_log.close()
