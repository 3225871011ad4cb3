"""When to plan and from what: reads history and calibration, calls the pure planner on its cadence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

from outrider import log
from outrider.errors import StoreAwayError
from outrider.model import Calibration, EntityKind, EntityRef, FleetService, Plan, Window
from outrider.ports import MetricStore
from outrider.topology import Topology
from planner import calibrate
from planner.forecast import Calendar, Event
from planner.forecast.calendar import holidays
from planner.plan import KEYS as HISTORY_KEYS
from planner.plan import PlanSettings
from planner.plan import plan as make_plan
from service.nightly import Nightly
from service.planner_settings import PlannerSettings
from service.settings import ServiceSettings

_log = log.get("plan")
HISTORY_STEP = timedelta(minutes=10)
_HOLIDAYS_AHEAD = timedelta(days=8)
CALIBRATION_SPAN = timedelta(hours=24)
CALIBRATION_STEP = timedelta(
    minutes=10
)  # not finer than a back-filled history or a roll-up: their increases cover as much


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
    ) -> None:
        """``ready`` gives (current, ready) replicas of a service; ``in_background`` never holds a cycle up."""
        self._metrics = metrics
        self._settings = settings
        self._services = services
        self._ready = ready
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="planner") if in_background else None
        self._nightly = Nightly(settings.workers, settings.ray_address) if in_background and settings.prophet else None
        self._running: Future[Plan] | None = None
        self._next_at: datetime | None = None
        self.latest = Plan()

    def plan_if_due(self, now: datetime, topology: Topology) -> Plan | None:
        """A new plan when one is due (or has just been finished in the background), else None."""
        if self._running is not None:
            return self._take()
        if self._next_at is not None and now < self._next_at:
            return None
        self._next_at = now + self._settings.every
        if self._pool is not None:
            self._running = self._pool.submit(self._plan, now, topology)
            return None
        return self._made(lambda: self._plan(now, topology))

    def close(self) -> None:
        """Wait for a plan in the making."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        if self._nightly is not None:
            self._nightly.close()

    def _take(self) -> Plan | None:
        if self._running is None or not self._running.done():
            return None
        running, self._running = self._running, None
        return self._made(running.result)

    def _made(self, make: Callable[[], Plan]) -> Plan | None:
        """The new plan; None, and the last one stays, when the history cannot be read for now."""
        try:
            self.latest = make()
        except StoreAwayError as error:
            _log.warning("no_plan", error=error.message, hint=error.hint)
            return None
        return self.latest

    def _plan(self, now: datetime, topology: Topology) -> Plan:
        services = topology.of_kind(EntityKind.SERVICE)
        if not services:
            return Plan()
        history = self._metrics.read_windows(
            EntityKind.SERVICE, HISTORY_KEYS, now - self._settings.history, now, HISTORY_STEP, services
        )
        fleet = [self._fleet_service(service, topology) for service in services]
        calibrations = {service: found for service in services if (found := self._calibration(service, topology, now))}
        chosen = PlanSettings(buffer=self._settings.buffer, calendar=calendar_of(self._settings, now))
        if self._nightly is not None:
            self._nightly.start_if_due(history, services, now, chosen.horizon, chosen.calendar)
            chosen = replace(chosen, nights=self._nightly.made())
        made = make_plan(history, calibrations, fleet, now, settings=chosen)
        _log.info("plan_made", services=len(services), forecasts=len(made.forecasts))
        return made

    def _setting(self, service: EntityRef) -> ServiceSettings:
        """What the configuration says of a service; one without a namespace speaks for every namespace."""
        for setting in self._services:
            if setting.name == service.name and setting.namespace in (None, service.namespace):
                return setting
        return ServiceSettings(name=service.name, namespace=service.namespace)

    def _fleet_service(self, service: EntityRef, topology: Topology) -> FleetService:
        setting = self._setting(service)
        current, ready = self._ready(service, topology)
        return FleetService(
            service=service,
            gpu_type=_gpu_type(service, setting, topology),
            current_replicas=current,
            ready_replicas=ready,
            floor=setting.floor,
            ceiling=setting.ceiling,
            price_per_gpu_hour=setting.price_per_gpu_hour,
            currency=setting.currency,
        )

    def _calibration(self, service: EntityRef, topology: Topology, now: datetime) -> Calibration | None:
        """What the configuration fixes, the rest measured; None when too little is known."""
        setting = self._setting(service)
        replicas = topology.below(service, EntityKind.REPLICA)
        window = self._metrics.read_windows(
            EntityKind.REPLICA, calibrate.KEYS, now - CALIBRATION_SPAN, now, CALIBRATION_STEP, replicas
        )
        found = calibration_of(service, setting, window, _gpu_type(service, setting, topology))
        if found is None or found.origin != "measured":
            return found
        members = (service, *replicas)
        return replace(
            found,
            model=_told(topology, members, "model"),
            engine_version=_told(topology, members, "version") or _told(topology, members, "image"),
            measured_at=now,
        )


def calendar_of(settings: PlannerSettings, now: datetime) -> Calendar:
    """The events of the configuration, and the holidays of the history and of the weeks to come."""
    events = [Event(each.name, each.start, each.end, each.ratio) for each in settings.events]
    if settings.holidays is not None:
        first, last = (now - settings.history).date(), (now + _HOLIDAYS_AHEAD).date()
        events += holidays(settings.holidays, first, last, settings.zone)
    return Calendar(tuple(events), settings.zone)


def calibration_of(service: EntityRef, setting: ServiceSettings, window: Window, gpu_type: str) -> Calibration | None:
    """One service's calibration from its settings and a window of its replicas."""
    configured = calibrate.Configured(
        tokens_per_request=setting.tokens_per_request,
        batch=setting.batch,
        tokens_per_second_per_sequence=setting.tokens_per_second_per_sequence,
        startup_seconds=setting.startup.total_seconds(),
    )
    found = calibrate.calibrate(
        window,
        service,
        gpu_type=gpu_type,
        tensor_parallel=setting.tensor_parallel,
        pipeline_parallel=setting.pipeline_parallel,
        configured=configured,
    )
    return found if isinstance(found, Calibration) else None


def _told(topology: Topology, entities: Iterable[EntityRef], label: str) -> str:
    """What the topology says of all of them; nothing while they differ, as during a rollout."""
    said = {topology.label(entity, label) for entity in entities} - {""}
    return said.pop() if len(said) == 1 else ""


def _gpu_type(service: EntityRef, setting: ServiceSettings, topology: Topology) -> str:
    if setting.gpu_type != "unknown":
        return setting.gpu_type
    types = {topology.label(replica, "gpu_type") for replica in topology.below(service, EntityKind.REPLICA)} - {""}
    return types.pop() if len(types) == 1 else "unknown"
