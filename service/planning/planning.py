"""Planning schedule: reads history and calibrations and calls the pure planner every few minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import isfinite

from outrider import log
from outrider.errors import OutriderError, StoreUnavailableError
from outrider.model import (
    Calibration,
    EngineLoad,
    EntityKind,
    EntityRef,
    FleetService,
    NoRecommendation,
    Plan,
    Recommendation,
    Window,
)
from outrider.ports import MetricStore
from outrider.records.change_log import ChangeLog
from outrider.topology import Topology
from planner.capacity.fluid_queue import LIMIT_SECONDS
from planner.capacity.plan import KEYS as HISTORY_KEYS
from planner.capacity.plan import LOAD, PlanBasis, PlanSettings
from planner.capacity.plan import plan_with_basis as make_plan
from planner.capacity.plan import replan as make_replan
from planner.forecast import Calendar, Event
from planner.forecast.calendar import holidays
from planner.forecast.history import clean_history
from service.config.planner_settings import PlannerSettings
from service.config.service_settings import ServiceSettings
from service.planning import hindsight, role_pools
from service.planning.nightly import Nightly
from service.planning.planner_inputs import PlannedFleet
from service.planning.replan import PlannedService, ReplanReason, ServiceNow, Situation, triggers
from service.planning.slo_inputs import SloInputs

__all__ = ["NoPlanning", "Planning"]

_log = log.get("plan")
HISTORY_STEP = timedelta(minutes=10)
HORIZON = timedelta(hours=24)
_HOLIDAYS_AHEAD = timedelta(days=8)
_RECENT = timedelta(hours=2)  # replicas of earlier plans, for the limits of an hour


@dataclass(frozen=True, slots=True)
class _ScheduledPlan:
    """A scheduled plan with what later revisions need: its basis, the fleet, and the state it was made from."""

    at: datetime
    plan: Plan
    basis: PlanBasis | None = None
    fleet: tuple[FleetService, ...] = ()
    services: Mapping[EntityRef, ServiceNow] = field(default_factory=dict)


class NoPlanning:
    """Plans nothing, for replays without history."""

    latest = Plan()

    def plan_if_due(self, now: datetime, topology: Topology, situation: Situation | None = None) -> Plan | None:
        """Returns None."""
        del now, topology, situation
        return None

    def close(self) -> None:
        """Does nothing."""


class Planning:
    """Plans on a schedule. ``latest`` is the newest plan, empty before the first."""

    def __init__(
        self,
        metrics: MetricStore,
        settings: PlannerSettings,
        services: list[ServiceSettings],
        ready: Callable[[EntityRef, Topology], tuple[int, int]],
        *,
        in_background: bool = False,
        change_log: ChangeLog | None = None,
        with_hindsight: bool = True,
        tests: Callable[[], Sequence[Calibration]] = tuple,
        slo_inputs: SloInputs | None = None,
    ) -> None:
        """``ready`` returns (current, ready) replicas of a service; ``in_background`` plans in a thread.

        ``change_log`` has the replica start-ups and stores the hindsight. Without it lead times are the configured
        ones. ``tests`` returns calibrations from load tests, ``slo_inputs`` holds the SLOs.
        ``with_hindsight`` False plans without hindsight and nightly fits.
        """
        self._metrics = metrics
        self._settings = settings
        self._change_log = change_log
        self._slo_inputs = slo_inputs or SloInputs()
        self._with_hindsight = with_hindsight
        self._fleet = PlannedFleet(metrics, services, ready, settings.scaling.lead, change_log, tests)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="planner") if in_background else None
        self._hindsight_pool = ThreadPoolExecutor(1, thread_name_prefix="hindsight") if in_background else None
        self._nightly = None
        if in_background and with_hindsight:
            self._nightly = Nightly(settings.workers, settings.ray_address, models=settings.models)
        self._running: Future[_ScheduledPlan] | None = None
        self._next_at: datetime | None = None
        self._recent: dict[EntityRef, tuple[tuple[datetime, int], ...]] = {}
        self._made: _ScheduledPlan | None = None
        self._planned: dict[EntityRef, PlannedService] = {}
        self._situation: Situation | None = None
        self._overdue: dict[EntityRef, tuple[ReplanReason, ...]] = {}
        self.latest = Plan()

    def plan_if_due(self, now: datetime, topology: Topology, situation: Situation | None = None) -> Plan | None:
        """Returns a new plan if one is due, was just finished in the background, or was triggered, else None.

        ``situation`` holds replicas and load of this cycle; without it only the schedule makes plans. A triggered plan
        revises the recommendations of its services and uses the forecasts of the last plan.
        """
        scheduled = self._scheduled(now, topology, situation)
        if situation is None:
            return scheduled
        before, self._situation = self._situation, situation
        if scheduled is not None and self._pool is None:
            return scheduled
        revised = self._run_replan(before, situation, topology)
        if scheduled is not None and revised is not None:
            self.latest = revised = replace(revised, revised=None)  # all of it is new, forecasts too
        return revised or scheduled

    def _run_replan(self, before: Situation | None, situation: Situation, topology: Topology) -> Plan | None:
        """Returns the revised plan, None without a trigger or after an error: the cycle goes on with the last plan."""
        try:
            return self._replan(before, situation, topology)
        except (OutriderError, ValueError, ArithmeticError, LookupError) as error:
            _log.exception("plan_not_revised", error=str(error))
            return None

    def _scheduled(self, now: datetime, topology: Topology, situation: Situation | None) -> Plan | None:
        if self._running is not None:
            return self._finished()
        wait = timedelta(0) if self._next_at is None else self._next_at - now
        if timedelta(0) < wait <= self._settings.every:  # longer: the clock was set back
            return None
        self._next_at = now + self._settings.every
        if self._pool is not None:
            self._running = self._pool.submit(self._plan, now, topology, situation)
            return None
        return self._run(lambda: self._plan(now, topology, situation))

    def close(self) -> None:
        """Waits for a running plan."""
        for pool in (self._pool, self._hindsight_pool):
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
        if self._nightly is not None:
            self._nightly.close()

    def _finished(self) -> Plan | None:
        if self._running is None or not self._running.done():
            return None
        running, self._running = self._running, None
        return self._run(running.result)

    def _run(self, make: Callable[[], _ScheduledPlan]) -> Plan | None:
        """Returns the new plan. After an error it returns None and keeps the last plan, so that the cycle goes on."""
        try:
            self._accept(make())
        except StoreUnavailableError as error:
            _log.warning("no_plan", error=error.message, hint=error.hint)
            return None
        except (OutriderError, ValueError, ArithmeticError, LookupError) as error:
            _log.exception("no_plan", error=str(error))
            return None
        return self.latest

    def _accept(self, made: _ScheduledPlan) -> None:
        """Keeps a new plan. Services that were revised while it was made are revised again with its forecasts."""
        revised = {
            item.service: tuple(map(ReplanReason, item.derivation["replanned"]))
            for item in self.latest.recommendations
            if isinstance(item, Recommendation) and item.made_at > made.at and "replanned" in item.derivation
        }
        self._made, self._overdue, self.latest = made, revised, made.plan
        self._planned = {}
        self._note(made.plan.recommendations, made.services)
        for service, seen in made.services.items():
            self._remember(service, made.at, seen.current)

    def _remember(self, service: EntityRef, at: datetime, replicas: int) -> None:
        """Adds an observation of the ordered replicas. A plan in the background reads them: tuples are replaced."""
        known = (*self._recent.get(service, ()), (at, replicas))
        newest = max(observed for observed, _ in known)
        self._recent[service] = tuple(sorted(entry for entry in known if entry[0] >= newest - _RECENT))

    def _note(
        self, items: Iterable[Recommendation | NoRecommendation], services: Mapping[EntityRef, ServiceNow]
    ) -> None:
        """Records what the recommendations were made from, for the triggers."""
        if self._made is None or self._made.basis is None:
            return
        for item in items:
            if isinstance(item, Recommendation) and item.service in services:
                objectives = self._slo_inputs.objectives(item.service)
                self._planned[item.service] = PlannedService(
                    services[item.service],
                    None,
                    self._made.basis.per_replica(item.service),
                    min((known.seconds for known in objectives if known.sli == "ttft"), default=LIMIT_SECONDS),
                    bool((item.derivation.get("short") or {}).get("is_now")),
                )

    def _replan(self, before: Situation | None, situation: Situation, topology: Topology) -> Plan | None:
        """Revises the plan for the present if a trigger requires it; None without a trigger or a first plan."""
        made, now = self._made, situation.at
        if made is None or made.basis is None:
            return None
        planned = {
            service: replace(known, upper=made.basis.upper_bound(service, now))
            for service, known in self._planned.items()
        }
        due = {service: reasons for service, reasons in self._overdue.items() if service in planned}
        due |= triggers(planned, before, situation)
        self._overdue = {}
        if not due:
            return None
        seen = situation.services
        fleet = [_present(item, seen.get(item.service), self._recent_replicas(item.service)) for item in made.fleet]
        fleet = self._fleet.with_placement(fleet, role_pools.with_pools(topology), now)
        loads = {service: state.present for service, state in seen.items()}
        revised = {item.service: item for item in make_replan(made.basis, fleet, due, loads, now)}
        items = tuple(revised.get(item.service, item) for item in self.latest.recommendations)
        self.latest = replace(self.latest, recommendations=items, revised=tuple(revised))
        self._note(revised.values(), seen)
        for service in revised:
            self._remember(service, now, seen[service].current)
        _log.info(
            "plan_revised", services=len(revised), reasons=sorted({reason for why in due.values() for reason in why})
        )
        return self.latest

    def _plan(self, now: datetime, topology: Topology, situation: Situation | None) -> _ScheduledPlan:
        all_services = topology.of_kind(EntityKind.SERVICE)
        if not all_services:
            return _ScheduledPlan(now, Plan())
        history = self._metrics.read_windows(
            EntityKind.SERVICE, HISTORY_KEYS, now - self._settings.history, now, HISTORY_STEP, all_services
        )
        topology = role_pools.with_pools(topology)
        services = role_pools.planned(topology)
        history = role_pools.with_rows(history, services, topology)
        fleet, calibrations = self._fleet.of(services, topology, now, self._recent_replicas)
        seen = {} if situation is None else situation.services
        fleet = [_present(item, seen.get(item.service), item.recent) for item in fleet]
        settings = PlanSettings(
            buffer=self._settings.buffer,
            horizon=HORIZON,
            limits=self._settings.scaling.limits,
            calendar=calendar_of(self._settings, now),
            service_facts=self._slo_inputs.of(self._fleet, calibrations, topology, self._metrics, now),
            present={service: state.present for service, state in seen.items()},
        )
        if self._nightly is not None:
            clean, _ = clean_history(history, LOAD, now)
            leads = {item.service: _lead_of(item, calibrations) for item in fleet if item.service in calibrations}
            self._nightly.start_if_due(clean, services, now, settings.horizon, settings.calendar, leads)
            settings = replace(settings, nights=self._nightly.decisions(), rules=self._nightly.rules())
        plan, basis = make_plan(history, calibrations, fleet, now, settings)
        self._run_hindsight(history, plan, now)
        _log.info("plan_made", services=len(services), forecasts=len(plan.forecasts))
        state = {
            item.service: seen.get(item.service, ServiceNow(item.current_replicas, item.ready_replicas))
            for item in fleet
        }
        return _ScheduledPlan(now, plan, basis, tuple(fleet), state)

    def _recent_replicas(self, service: EntityRef) -> tuple[tuple[datetime, int], ...]:
        return self._recent.get(service, ())

    def _run_hindsight(self, history: Window, plan: Plan, now: datetime) -> None:
        """Replays the last climb to a peak, if due."""
        if self._change_log is None or not self._with_hindsight or not hindsight.is_due(self._change_log, now):
            return
        change_log = self._change_log

        def run() -> None:
            try:
                hindsight.update(change_log, history, plan, now, self._settings.buffer, self._settings.scaling.limits)
            except OutriderError as error:
                _log.warning("hindsight_skipped", error=error.message)

        if self._hindsight_pool is None:
            run()
        else:
            self._hindsight_pool.submit(run)


def _present(service: FleetService, seen: ServiceNow | None, recent: tuple[tuple[datetime, int], ...]) -> FleetService:
    """Returns the service with the replicas and the engine load of now; KV cache usage keeps its recent maximum."""
    if seen is None:
        return service
    load, kept = seen.present, service.engines
    kv_known = [value for value in (load.kv_replicas, kept.kv_replicas) if value is not None]
    engines = EngineLoad(
        kept.running if load.running is None else load.running,
        kept.waiting if load.waiting is None else load.waiting,
        max(kv_known, default=None),
    )
    return replace(service, current_replicas=seen.current, ready_replicas=seen.ready, engines=engines, recent=recent)


def _lead_of(service: FleetService, calibrations: Mapping[EntityRef, Calibration]) -> timedelta:
    seconds = calibrations[service.service].startup_seconds if service.lead is None else service.lead.seconds
    return timedelta(seconds=seconds if isfinite(seconds) else 0.0)


def calendar_of(settings: PlannerSettings, now: datetime) -> Calendar:
    """Returns the configured events, and the holidays of the history and the next eight days."""
    events = [Event(event.name, event.start, event.end, event.ratio) for event in settings.events]
    if settings.holidays is not None:
        first, last = (now - settings.history).date(), (now + _HOLIDAYS_AHEAD).date()
        events += holidays(settings.holidays, first, last, settings.zone)
    return Calendar(tuple(dict.fromkeys(events)), settings.zone)
