"""The engine process: cycles, dispatch and checkpoints of one store. There is one engine per store."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from datetime import datetime
from functools import partial

from outrider import gc_tuning, log
from outrider.clock import Clock, SystemClock
from outrider.errors import StoreUnavailableError, UnavailableError
from service.config.settings import Settings
from service.config.tokens import folder_of
from service.engine.dispatch import Dispatcher
from service.oncall.calendars import CHECK_EVERY as CALENDARS_EVERY
from service.oncall.calendars import CalendarReader
from service.oncall.maintenance_calendars import MaintenanceCalendars
from service.runtime import periodic_tasks, report_jobs
from service.runtime.game_days import GameDays
from service.runtime.heartbeat import HeartbeatSender
from service.runtime.leader import CHECK_EVERY, Leader, leading
from service.runtime.periodic_tasks import PeriodicTasks
from service.runtime.store_maintenance import StoreMaintenance
from service.wiring import platform as wiring_platform
from store import factory

_log = log.get("engine")
SWITCH_SECONDS = 0.001  # a thread gives way to others after this time


def run(settings: Settings) -> None:
    """Runs until SIGTERM, SIGINT or SIGHUP.

    If configured, it first stands by until no other engine uses the store. Raises UnavailableError if another one
    does, StoreError if the store cannot be opened.
    """
    with leading(settings, stand_by=may_stand_by(settings)) as leader:
        asyncio.run(_run(settings, leader))


def may_stand_by(settings: Settings) -> bool:
    """True if a second engine waits for the first one to end."""
    return settings.store.stand_by and factory.on_server(settings.store.url)


async def _run(settings: Settings, leader: Leader) -> None:
    clock = SystemClock()
    platform = wiring_platform.platform(settings, clock, may_write=leader.held)
    platform.state.take_over(secrets.token_hex(8))
    platform.warm(clock.now())
    tasks = periodic_tasks_of(platform, clock)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def check_leader(_now: datetime) -> None:
        if not still_leading(leader, platform):
            loop.call_soon_threadsafe(stopped.set)

    tasks.call_every(CHECK_EVERY, "leader", check_leader)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # after SIGHUP the supervisor restarts the process
        loop.add_signal_handler(number, stopped.set)
    tune()
    tasks.start()
    tasks.run_soon("calendars")
    tasks.run_soon("maintenance_calendars")
    _log.info("engine_started", targets=len(settings.collect.targets), interval=str(settings.collect.interval))
    await stopped.wait()
    await tasks.stop()
    if leader.held():
        platform.checkpoint(clock.now())
    await platform.close()


def tune() -> None:
    """Sets the interpreter up for an engine: an early decision must not wait for a thousand scrapes."""
    gc_tuning.settle()
    sys.setswitchinterval(SWITCH_SECONDS)


def still_leading(leader: Leader, platform: wiring_platform.Platform) -> bool:
    """False if another engine took over: this process then ends, is restarted and stands by.

    A database server that restarted has lost the lock, and the first to acquire it leads again. While the server is
    unavailable nobody can acquire it.
    """
    try:
        if leader.held():
            return True
        leader.acquire()
        if platform.state.owned():
            _log.info("leadership_regained")
            return True
    except StoreUnavailableError:
        return True
    except UnavailableError as error:
        _log.warning("leadership_lost", because=error.message)
    _log.error("leadership_lost_to_standby", set_aside=platform.spool.set_aside())
    return False


def periodic_tasks_of(platform: wiring_platform.Platform, clock: Clock) -> PeriodicTasks:
    """Returns all periodic tasks of the engine; nothing runs before ``start``."""
    tasks, settings = PeriodicTasks(clock), platform.settings
    tasks.every(settings.collect.interval, "cycle", platform.cycle.run_in_thread)
    dispatcher = platform.dispatcher
    tasks.call_every(periodic_tasks.DISPATCH_EVERY, "dispatch", lambda _now: dispatcher.perform_actions())
    tasks.call_every(periodic_tasks.DISPATCH_EVERY, "deliver", lambda _now: dispatcher.deliver_messages(tasks.stopping))
    platform.cycle.on_decision = partial(_dispatch, tasks, dispatcher)
    if platform.fast_path is not None:
        tasks.every(periodic_tasks.EARLY_EVERY, "early", lambda: platform.collector.read_early(clock.now()))
    tasks.call_every(periodic_tasks.CHECKPOINT_EVERY, "checkpoint", platform.checkpoint)
    maintenance = StoreMaintenance(platform.metrics, settings.store.retention.retention, tasks.stopping)
    tasks.add(periodic_tasks.MAINTENANCE_EVERY, "upkeep", maintenance)
    oncall, roster = settings.oncall, platform.roster
    if roster is not None and any(schedule.calendar is not None for schedule in oncall.schedules):
        calendars = CalendarReader(oncall.people, oncall.schedules, platform.state, roster.prepare)
        tasks.add(CALENDARS_EVERY, "calendars", calendars)
    planned = MaintenanceCalendars(settings.maintenance_calendars, platform.state)
    tasks.add(CALENDARS_EVERY, "maintenance_calendars", planned)
    tasks.call_every(periodic_tasks.PRUNE_EVERY, "prune_state", partial(_prune, platform))
    _add_alert_tasks(tasks, platform)
    if settings.game_days:
        days = GameDays(platform.state, settings.remediation.control_url, settings.game_days)
        tasks.add(periodic_tasks.GAME_DAYS_EVERY, "game_days", days)
    if platform.flight is not None:
        tasks.call_every(periodic_tasks.INCIDENT_RECORDING_EVERY, "flight", partial(_record_incidents, platform))
    tasks.call_weekly("weekly_report", partial(_weekly_report, platform))
    return tasks


def _dispatch(tasks: PeriodicTasks, dispatcher: Dispatcher) -> None:
    """Dispatches new decisions at once; a slow message channel delays neither an action nor another channel."""
    for name in ("dispatch", "deliver", "emit"):
        tasks.run_soon(name)
    dispatcher.wake_delivery()


def _add_alert_tasks(tasks: PeriodicTasks, platform: wiring_platform.Platform) -> None:
    """Adds the exchange of alerts, silences and heartbeats with other monitors."""
    settings, exchange = platform.settings, platform.alertmanager
    tasks.call_every(periodic_tasks.EXPIRE_EVERY, "expire_received", platform.state.expire_received_alerts)
    if exchange is not None:
        tasks.add(settings.alertmanager.every, "emit", exchange.emitter)
        tasks.add(settings.alertmanager.every, "silences", exchange.silences)
    if settings.heartbeat.urls:
        sender = HeartbeatSender(settings.heartbeat.urls, platform.liveness, settings.heartbeat.timeout)
        tasks.add(settings.heartbeat.every, "heartbeat", sender)


def _record_incidents(platform: wiring_platform.Platform, now: datetime) -> None:
    """Writes the scrapes that preceded new P0 and P1 incidents."""
    source = platform.collector
    if platform.flight is not None:
        platform.flight.record_due(now, source.page_topology, platform.settings.cluster, source.pages.watched)


def _prune(platform: wiring_platform.Platform, now: datetime) -> None:
    """Deletes decisions beyond their retention."""
    deleted = platform.state.prune(now, platform.settings.store.retention.of_state)
    if deleted:
        _log.info("state_pruned", **deleted)


def _weekly_report(platform: wiring_platform.Platform, now: datetime) -> None:
    """Writes the report of last week beside the store, in the configured language."""
    out = folder_of(platform.settings) / "reports"
    language = platform.settings.notify.language
    week = report_jobs.week_before(now)
    report_jobs.write(platform.state, platform.metrics, week, report_jobs.FORMATS, out, language, now)
