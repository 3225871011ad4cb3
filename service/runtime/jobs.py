"""What runs by the clock in the engine process, by APScheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from threading import Event
from typing import Any

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from outrider import log
from outrider.errors import StoreUnavailableError

_log = log.get("jobs")
CHECKPOINT_EVERY = timedelta(minutes=5)
DISPATCH_EVERY = timedelta(seconds=1)
FLIGHT_EVERY = timedelta(seconds=15)
GAME_DAYS_EVERY = timedelta(seconds=15)
UPKEEP_EVERY = timedelta(minutes=5)
PRUNE_EVERY = timedelta(hours=1)
_FRIENDLY = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}


class Jobs:
    """The engine's schedule: cycles, dispatch, check-points, upkeep of the store, the weekly report."""

    def __init__(self) -> None:
        """Nothing runs before ``start``."""
        self._scheduler = AsyncIOScheduler(timezone="UTC", job_defaults=_FRIENDLY)
        self._running: set[asyncio.Future[None]] = set()
        self._stopping = Event()

    def every(self, duration: timedelta, name: str, job: Callable[[], Awaitable[Any]]) -> None:
        """Run ``job`` now and then every ``duration``; a run that is late is not run twice."""
        self._scheduler.add_job(self._guarded(name, job), IntervalTrigger(seconds=duration.total_seconds()), id=name)

    def weekly(
        self,
        name: str,
        job: Callable[[], Awaitable[Any]],
        *,
        day: str = "mon",
        hour: int = 8,
        minute: int = 0,
        timezone: str = "UTC",
    ) -> None:
        """Run ``job`` once a week."""
        due = CronTrigger(day_of_week=day, hour=hour, minute=minute, timezone=timezone)
        self._scheduler.add_job(self._guarded(name, job), due, id=name)

    @property
    def names(self) -> tuple[str, ...]:
        """What is scheduled."""
        return tuple(job.id for job in self._scheduler.get_jobs())

    async def run(self, name: str) -> None:
        """Run one job now, as its schedule would."""
        await self._scheduler.get_job(name).func()

    def start(self) -> None:
        """Begin; needs a running event loop."""
        self._scheduler.start()

    def stopping(self) -> bool:
        """True once ``stop`` was called: long jobs ask between their steps."""
        return self._stopping.is_set()

    async def stop(self) -> None:
        """Begin nothing more and wait for what is in flight: a cycle is never cut in two by a stop."""
        self._stopping.set()
        self._scheduler.pause()
        if self._running:
            await asyncio.wait(self._running)
        self._scheduler.shutdown(wait=False)

    def _guarded(self, name: str, job: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[None]]:
        """The cycle boundary: a failure is told with the job's name, and the schedule goes on."""

        async def run() -> None:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._running.add(ended)
            try:
                await job()
            except StoreUnavailableError as error:
                _log.error("job_failed", job=name, error=error.message, hint=error.hint)
            except Exception as error:  # noqa: BLE001 - the one place where a failed stage must not stop the platform
                _log.exception("job_failed", job=name, error=str(error))
            finally:
                self._running.discard(ended)
                ended.set_result(None)

        return run
