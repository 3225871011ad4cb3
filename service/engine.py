"""The engine process: cycles, dispatch and check-points of one store. There is one engine per store."""

from __future__ import annotations

import asyncio
import secrets
import signal
from datetime import datetime

from collectors.collect import Collector
from outrider import log
from outrider.clock import Clock, SystemClock
from service import jobs, reporting, wiring
from service.drills import gamedays
from service.event_source import pages_of
from service.leader import LOOK_EVERY, Leader, leading
from service.settings import Settings
from service.tokens import folder_of
from store import sql

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
    return settings.store.stand_by and sql.on_server(settings.store.url)


async def _run(settings: Settings, leader: Leader) -> None:
    clock = SystemClock()
    platform = wiring.platform(settings, clock)
    platform.state.take_over(secrets.token_hex(8))
    platform.warm(clock.now())
    schedule = schedule_of(platform, clock)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    schedule.every(LOOK_EVERY, "leader", lambda: asyncio.to_thread(_still_leading, leader, loop, stopped))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # after SIGHUP the supervisor starts it anew
        loop.add_signal_handler(number, stopped.set)
    schedule.start()
    _log.info("engine_started", targets=len(settings.collect.targets), interval=str(settings.collect.interval))
    await stopped.wait()
    await schedule.stop()
    platform.checkpoint(clock.now())
    await platform.close()


def _still_leading(leader: Leader, loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    """End the process when another engine may have taken over; it is started again and stands by."""
    if not leader.held():
        _log.error("leadership_lost")
        loop.call_soon_threadsafe(stopped.set)


def schedule_of(platform: wiring.Platform, clock: Clock) -> jobs.Jobs:
    """Everything the engine does by the clock; nothing runs before its ``start``."""
    schedule = jobs.Jobs()
    schedule.every(platform.settings.collect.interval, "cycle", platform.cycle.run_in_thread)
    schedule.every(jobs.DISPATCH_EVERY, "dispatch", lambda: asyncio.to_thread(platform.dispatcher.run_once))
    schedule.every(jobs.CHECKPOINT_EVERY, "checkpoint", lambda: asyncio.to_thread(platform.checkpoint, clock.now()))
    schedule.hourly(
        "compact", lambda: asyncio.to_thread(_compact, platform, clock.now()), minute=jobs.COMPACT_AT_MINUTE
    )
    given = platform.settings
    if given.game_days:
        days = gamedays.GameDays(platform.state, given.remediation.control_url, given.game_days)
        schedule.every(jobs.GAME_DAYS_EVERY, "game_days", lambda: asyncio.to_thread(days.look, clock.now()))
    if platform.flight is not None:
        schedule.every(jobs.FLIGHT_EVERY, "flight", lambda: asyncio.to_thread(_keep_flights, platform, clock.now()))
    schedule.weekly("weekly_report", lambda: asyncio.to_thread(_weekly_report, platform, clock.now()))
    return schedule


def _keep_flights(platform: wiring.Platform, now: datetime) -> None:
    """Write down the scrapes that led to new loud incidents."""
    source = pages_of(platform.collector)
    if platform.flight is not None and isinstance(source, Collector):
        platform.flight.look(now, source.topology(now), platform.settings.cluster, source.targets)


def _compact(platform: wiring.Platform, now: datetime) -> None:
    """Rewrite the hours that are over: a third of the bytes, and long reads in half a second."""
    hours = platform.metrics.compact(now)
    if hours:
        _log.info("compacted", hours=hours)


def _weekly_report(platform: wiring.Platform, now: datetime) -> None:
    """Write last week's report beside the store, in the configured language."""
    out = folder_of(platform.settings) / "reports"
    language = platform.settings.notify.language
    week = reporting.week_before(now)
    reporting.write(platform.state, platform.metrics, week, reporting.FORMATS, out, language, now)
