"""Planning schedule: reads history and calibrations and calls the pure planner every few minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from math import isfinite

from outrider import log
from outrider.errors import OutriderError, StoreUnavailableError
from outrider.model import Calibration, EntityKind, EntityRef, FleetService, Plan, Window
from outrider.ports import MetricStore
from outrider.records.change_log import ChangeLog
from outrider.topology import Topology
from planner.capacity.plan import KEYS as HISTORY_KEYS
from planner.capacity.plan import LOAD, PlanSettings
from planner.capacity.plan import plan as make_plan
from planner.forecast import Calendar, Event
from planner.forecast.calendar import holidays
from planner.forecast.history import clean_history
from service.config.planner_settings import PlannerSettings
from service.config.service_settings import ServiceSettings
from service.planning import hindsight, role_pools
from service.planning.nightly import Nightly
from service.planning.planner_inputs import PlannedFleet
from service.planning.slo_inputs import SloInputs

__all__ = ["NoPlanning", "Planning"]

_log = log.get("plan")
HISTORY_STEP = timedelta(minutes=10)
HORIZON = timedelta(hours=24)
_HOLIDAYS_AHEAD = timedelta(days=8)
_RECENT_PLANS = 12  # two hours of plans


class NoPlanning:
    """Plans nothing, for replays without history."""

    latest = Plan()

    def plan_if_due(self, now: datetime, topology: Topology) -> Plan | None:
        """Returns None."""
        del now, topology
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
        self._running: Future[Plan] | None = None
        self._next_at: datetime | None = None
        self._recent: dict[EntityRef, deque[tuple[datetime, int]]] = {}
        self.latest = Plan()

    def plan_if_due(self, now: datetime, topology: Topology) -> Plan | None:
        """Returns a new plan if one is due, or was just finished in the background, else None."""
        if self._running is not None:
            return self._finished()
        wait = timedelta(0) if self._next_at is None else self._next_at - now
        if timedelta(0) < wait <= self._settings.every:  # longer: the clock was set back
            return None
        self._next_at = now + self._settings.every
        if self._pool is not None:
            self._running = self._pool.submit(self._plan, now, topology)
            return None
        return self._run(lambda: self._plan(now, topology))

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

    def _run(self, make: Callable[[], Plan]) -> Plan | None:
        """Returns the new plan. After an error it returns None and keeps the last plan, so that the cycle goes on."""
        try:
            self.latest = make()
        except StoreUnavailableError as error:
            _log.warning("no_plan", error=error.message, hint=error.hint)
            return None
        except (OutriderError, ValueError, ArithmeticError, LookupError) as error:
            _log.exception("no_plan", error=str(error))
            return None
        return self.latest

    def _plan(self, now: datetime, topology: Topology) -> Plan:
        all_services = topology.of_kind(EntityKind.SERVICE)
        if not all_services:
            return Plan()
        history = self._metrics.read_windows(
            EntityKind.SERVICE, HISTORY_KEYS, now - self._settings.history, now, HISTORY_STEP, all_services
        )
        topology = role_pools.with_pools(topology)
        services = role_pools.planned(topology)
        history = role_pools.with_rows(history, services, topology)
        fleet, calibrations = self._fleet.of(services, topology, now, self._recent_replicas)
        settings = PlanSettings(
            buffer=self._settings.buffer,
            horizon=HORIZON,
            limits=self._settings.scaling.limits,
            calendar=calendar_of(self._settings, now),
            service_facts=self._slo_inputs.of(self._fleet, calibrations, topology, self._metrics, now),
        )
        if self._nightly is not None:
            clean, _ = clean_history(history, LOAD, now)
            leads = {item.service: _lead_of(item, calibrations) for item in fleet if item.service in calibrations}
            self._nightly.start_if_due(clean, services, now, settings.horizon, settings.calendar, leads)
            settings = replace(settings, nights=self._nightly.decisions(), margins=self._nightly.margins())
        plan = make_plan(history, calibrations, fleet, now, settings=settings)
        self._run_hindsight(history, plan, now)
        for service in fleet:
            recent = self._recent.setdefault(service.service, deque(maxlen=_RECENT_PLANS))
            recent.append((now, service.current_replicas))
        _log.info("plan_made", services=len(services), forecasts=len(plan.forecasts))
        return plan

    def _recent_replicas(self, service: EntityRef) -> tuple[tuple[datetime, int], ...]:
        return tuple(self._recent.get(service, ()))

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


def _lead_of(service: FleetService, calibrations: Mapping[EntityRef, Calibration]) -> timedelta:
    seconds = calibrations[service.service].startup_seconds if service.lead is None else service.lead.seconds
    return timedelta(seconds=seconds if isfinite(seconds) else 0.0)


def calendar_of(settings: PlannerSettings, now: datetime) -> Calendar:
    """Returns the configured events, and the holidays of the history and the next eight days."""
    events = [Event(event.name, event.start, event.end, event.ratio) for event in settings.events]
    if settings.holidays is not None:
        first, last = (now - settings.history).date(), (now + _HOLIDAYS_AHEAD).date()
        events += holidays(settings.holidays, first, last, settings.zone)
    return Calendar(tuple(events), settings.zone)
