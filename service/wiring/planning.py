"""Builds the planner of a configuration, and runs it once for a command."""

from __future__ import annotations

from datetime import datetime

from outrider.model import CycleRecord, EntityKind, EntityRef, Plan
from outrider.ports import MetricStore, StateStore
from outrider.records.change_log import ChangeLog
from outrider.topology import Topology
from service.config.settings import Settings
from service.engine import fleet_state
from service.engine.detector_memory import Detection
from service.planning.planning import Planning
from service.planning.slo_inputs import PlanOverrides, SloInputs
from service.wiring.stores import open_change_log, stores


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
        settings.planner,
        settings.services,
        count,
        in_background=in_background,
        change_log=change_log,
        tests=state.load_tests,
        slo_inputs=SloInputs(settings.slos, settings.cluster),
    )


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
                metrics, settings.planner, settings.services, count,
                change_log=change_log, with_hindsight=False, tests=state.load_tests,
                slo_inputs=SloInputs(settings.slos, settings.cluster, overrides or PlanOverrides()),
            )  # fmt: skip
            return planner.plan_if_due(as_of, topology) or Plan()
        finally:
            change_log.close()
