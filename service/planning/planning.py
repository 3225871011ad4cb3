"""When to plan and from what: reads history and calibration, calls the pure planner on its cadence."""

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
from service.planning.slo_inputs import Promises

__all__ = ["NoPlanning", "Planning"]

_log = log.get("plan")
HISTORY_STEP = timedelta(minutes=10)
HORIZON = timedelta(hours=24)
_HOLIDAYS_AHEAD = timedelta(days=8)
_LATELY = 12  # plans: two hours of them


class NoPlanning:
    """Plans nothing: for replays, which know a moment and no history."""

    latest = Plan()

    def plan_if_due(self, now: datetime, topology: Topology) -> Plan | None:
        """Nothing."""
        del now, topology
        return None

    def close(self) -> None:
        """Nothing to release."""


class Planning:
    """The planner's cadence. ``latest`` is the newest plan, empty before the first."""

    def __init__(
        self,
        metrics: MetricStore,
        settings: PlannerSettings,
        services: list[ServiceSettings],
        ready: Callable[[EntityRef, Topology], tuple[int, int]],
        *,
        in_background: bool = False,
        ledger: ChangeLog | None = None,
        looks_back: bool = True,
        tests: Callable[[], Sequence[Calibration]] = tuple,
        promises: Promises | None = None,
    ) -> None:
        """``ready`` gives (current, ready) replicas of a service; ``in_background`` never holds a cycle up.

        ``ledger`` knows how replicas started, and keeps what looking back found. Without it lead times are
        those of the configuration. ``tests`` tells what load tests say, ``promises`` what services promise.
        ``looks_back`` False: one plan alone is wanted, without nightly work.
        """
        self._metrics = metrics
        self._settings = settings
        self._ledger = ledger
        self._promises = promises or Promises()
        self._looks_back = looks_back
        self._fleet = PlannedFleet(metrics, services, ready, settings.scaling.lead, ledger, tests)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="planner") if in_background else None
        self._back_pool = ThreadPoolExecutor(1, thread_name_prefix="looking-back") if in_background else None
        self._nightly = None
        if in_background and looks_back:
            self._nightly = Nightly(settings.workers, settings.ray_address, models=settings.models)
        self._running: Future[Plan] | None = None
        self._next_at: datetime | None = None
        self._lately: dict[EntityRef, deque[tuple[datetime, int]]] = {}
        self.latest = Plan()

    def plan_if_due(self, now: datetime, topology: Topology) -> Plan | None:
        """A new plan when one is due (or has just been finished in the background), else None."""
        if self._running is not None:
            return self._take()
        wait = timedelta(0) if self._next_at is None else self._next_at - now
        if timedelta(0) < wait <= self._settings.every:  # a longer one is of a clock that was set back since
            return None
        self._next_at = now + self._settings.every
        if self._pool is not None:
            self._running = self._pool.submit(self._plan, now, topology)
            return None
        return self._made(lambda: self._plan(now, topology))

    def close(self) -> None:
        """Wait for a plan in the making."""
        for pool in (self._pool, self._back_pool):
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
        if self._nightly is not None:
            self._nightly.close()

    def _take(self) -> Plan | None:
        if self._running is None or not self._running.done():
            return None
        running, self._running = self._running, None
        return self._made(running.result)

    def _made(self, make: Callable[[], Plan]) -> Plan | None:
        """The new plan; None, and the last one stays, when there is none to be had: that must not cost the cycle."""
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
        everyone = topology.of_kind(EntityKind.SERVICE)
        if not everyone:
            return Plan()
        history = self._metrics.read_windows(
            EntityKind.SERVICE, HISTORY_KEYS, now - self._settings.history, now, HISTORY_STEP, everyone
        )
        topology = role_pools.with_pools(topology)
        services = role_pools.planned(topology)
        history = role_pools.with_rows(history, services, topology)
        fleet, calibrations = self._fleet.of(services, topology, now, self._known_lately)
        chosen = PlanSettings(
            buffer=self._settings.buffer,
            horizon=HORIZON,
            limits=self._settings.scaling.limits,
            calendar=calendar_of(self._settings, now),
            service_facts=self._promises.of(self._fleet, calibrations, topology, self._metrics, now),
        )
        if self._nightly is not None:
            clean, _ = clean_history(history, LOAD, now)
            leads = {one.service: _lead_of(one, calibrations) for one in fleet if one.service in calibrations}
            self._nightly.start_if_due(clean, services, now, chosen.horizon, chosen.calendar, leads)
            chosen = replace(chosen, nights=self._nightly.made(), margins=self._nightly.margins())
        made = make_plan(history, calibrations, fleet, now, settings=chosen)
        self._look_back(history, made, now)
        for service in fleet:
            known = self._lately.setdefault(service.service, deque(maxlen=_LATELY))
            known.append((now, service.current_replicas))
        _log.info("plan_made", services=len(services), forecasts=len(made.forecasts))
        return made

    def _known_lately(self, service: EntityRef) -> tuple[tuple[datetime, int], ...]:
        return tuple(self._lately.get(service, ()))

    def _look_back(self, history: Window, made: Plan, now: datetime) -> None:
        """What the plan would have done with the last climb to a peak, once a peak has passed."""
        if self._ledger is None or not self._looks_back or not hindsight.is_due(self._ledger, now):
            return
        ledger = self._ledger

        def run() -> None:
            try:
                hindsight.keep(ledger, history, made, now, self._settings.buffer, self._settings.scaling.limits)
            except OutriderError as error:
                _log.warning("not_looked_back", error=error.message)

        if self._back_pool is None:
            run()
        else:
            self._back_pool.submit(run)


def _lead_of(one: FleetService, calibrations: Mapping[EntityRef, Calibration]) -> timedelta:
    seconds = calibrations[one.service].startup_seconds if one.lead is None else one.lead.seconds
    return timedelta(seconds=seconds if isfinite(seconds) else 0.0)


def calendar_of(settings: PlannerSettings, now: datetime) -> Calendar:
    """The events of the configuration, and the holidays of the history and of the weeks to come."""
    events = [Event(each.name, each.start, each.end, each.ratio) for each in settings.events]
    if settings.holidays is not None:
        first, last = (now - settings.history).date(), (now + _HOLIDAYS_AHEAD).date()
        events += holidays(settings.holidays, first, last, settings.zone)
    return Calendar(tuple(events), settings.zone)
