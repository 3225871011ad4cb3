"""The engine process: cycles, dispatch and check-points of one store. There is one engine per store."""

from __future__ import annotations

import asyncio
import secrets
import signal
from datetime import datetime

from outrider import gc_tuning, log
from outrider.clock import Clock, SystemClock
from outrider.errors import StoreUnavailableError, UnavailableError
from service.config.settings import Settings
from service.config.tokens import folder_of
from service.runtime import game_days, jobs, report_jobs
from service.runtime.leader import LOOK_EVERY, Leader, leading
from service.runtime.store_maintenance import Keeper
from service.wiring import platform as wiring_platform
from store import factory

_log = log.get("engine")


def run(settings: Settings) -> None:
    """Work until SIGTERM, SIGINT or SIGHUP.

    Where it may, it first stands by until no other engine works on the store. Raises UnavailableError when
    another one does, StoreError when the store cannot be opened.
    """
    with leading(settings, stand_by=may_stand_by(settings)) as leader:
        asyncio.run(_run(settings, leader))


def may_stand_by(settings: Settings) -> bool:
    """True where a second engine waits for the first one to end."""
    return settings.store.stand_by and factory.on_server(settings.store.url)


async def _run(settings: Settings, leader: Leader) -> None:
    clock = SystemClock()
    platform = wiring_platform.platform(settings, clock, may_write=leader.held)
    platform.state.take_over(secrets.token_hex(8))
    platform.warm(clock.now())
    schedule = schedule_of(platform, clock)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not still_leading(leader, platform):
            loop.call_soon_threadsafe(stopped.set)

    schedule.every(LOOK_EVERY, "leader", lambda: asyncio.to_thread(look))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # after SIGHUP the supervisor starts it anew
        loop.add_signal_handler(number, stopped.set)
    gc_tuning.settle()
    schedule.start()
    _log.info("engine_started", targets=len(settings.collect.targets), interval=str(settings.collect.interval))
    await stopped.wait()
    await schedule.stop()
    if leader.held():
        platform.checkpoint(clock.now())
    await platform.close()


def still_leading(leader: Leader, platform: wiring_platform.Platform) -> bool:
    """False when another engine took over: this process ends, is started again and stands by.

    A server that restarted forgot who led: whoever asks first leads again. While it is away nobody can.
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
    _log.error("taken_over", set_aside=platform.spool.set_aside())
    return False


def schedule_of(platform: wiring_platform.Platform, clock: Clock) -> jobs.Jobs:
    """Everything the engine does by the clock; nothing runs before its ``start``."""
    schedule = jobs.Jobs()
    schedule.every(platform.settings.collect.interval, "cycle", platform.cycle.run_in_thread)
    schedule.every(jobs.DISPATCH_EVERY, "dispatch", lambda: asyncio.to_thread(platform.dispatcher.run_once))
    schedule.every(jobs.CHECKPOINT_EVERY, "checkpoint", lambda: asyncio.to_thread(platform.checkpoint, clock.now()))
    keeper = Keeper(platform.metrics, platform.settings.store.retention.retention, schedule.stopping)
    schedule.every(jobs.UPKEEP_EVERY, "upkeep", lambda: asyncio.to_thread(keeper.look, clock.now()))
    schedule.every(jobs.PRUNE_EVERY, "prune_state", lambda: asyncio.to_thread(_prune, platform, clock.now()))
    given = platform.settings
    if given.game_days:
        days = game_days.GameDays(platform.state, given.remediation.control_url, given.game_days)
        schedule.every(jobs.GAME_DAYS_EVERY, "game_days", lambda: asyncio.to_thread(days.look, clock.now()))
    if platform.flight is not None:
        schedule.every(jobs.FLIGHT_EVERY, "flight", lambda: asyncio.to_thread(_keep_flights, platform, clock.now()))
    schedule.weekly("weekly_report", lambda: asyncio.to_thread(_weekly_report, platform, clock.now()))
    return schedule


def _keep_flights(platform: wiring_platform.Platform, now: datetime) -> None:
    """Write down the scrapes that led to new loud incidents."""
    source = platform.collector
    if platform.flight is not None:
        platform.flight.look(now, source.page_topology, platform.settings.cluster, source.pages.watched)


def _prune(platform: wiring_platform.Platform, now: datetime) -> None:
    """Forget decisions that are past their time."""
    gone = platform.state.prune(now, platform.settings.store.retention.of_state)
    if gone:
        _log.info("state_pruned", **gone)


def _weekly_report(platform: wiring_platform.Platform, now: datetime) -> None:
    """Write last week's report beside the store, in the configured language."""
    out = folder_of(platform.settings) / "reports"
    language = platform.settings.notify.language
    week = report_jobs.week_before(now)
    report_jobs.write(platform.state, platform.metrics, week, report_jobs.FORMATS, out, language, now)
