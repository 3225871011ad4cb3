"""The periodic tasks of the engine process, run by APScheduler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from threading import Event
from typing import Any, Protocol

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from outrider import log
from outrider.clock import Clock
from outrider.errors import StoreUnavailableError

_log = log.get("jobs")
CHECKPOINT_EVERY = timedelta(minutes=5)
DISPATCH_EVERY = timedelta(seconds=1)
EARLY_EVERY = timedelta(seconds=1)
INCIDENT_RECORDING_EVERY = timedelta(seconds=15)
GAME_DAYS_EVERY = timedelta(seconds=15)
MAINTENANCE_EVERY = timedelta(minutes=5)
PRUNE_EVERY = timedelta(hours=1)
EXPIRE_EVERY = timedelta(minutes=1)
_JOB_DEFAULTS = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}


class PeriodicTask(Protocol):
    """Work that is due from time to time: store maintenance, game days, incident recordings, the leader check."""

    def run_due(self, now: datetime) -> object:
        """Does what is due at ``now``; called in a thread, never twice at a time."""
        ...


class PeriodicTasks:
    """The schedule of the engine: cycle, dispatch, checkpoints, maintenance, weekly report."""

    def __init__(self, clock: Clock) -> None:
        """Tasks get the time of ``clock``; the schedule itself is real time. Nothing runs before ``start``."""
        logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)  # it warns of each run that is merged
        self._clock = clock
        self._scheduler = AsyncIOScheduler(timezone="UTC", job_defaults=_JOB_DEFAULTS)
        self._running: set[asyncio.Future[None]] = set()
        self._started: set[asyncio.Future[None]] = set()  # keeps a reference while they run
        self._stopping = Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._again: dict[str, bool] = {}  # tasks in progress, and whether they are due again after that

    def every(self, duration: timedelta, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        """Runs ``work`` every ``duration``. Missed runs are merged into one."""
        self._scheduler.add_job(self._guarded(name, work), IntervalTrigger(seconds=duration.total_seconds()), id=name)

    def add(self, duration: timedelta, name: str, task: PeriodicTask) -> None:
        """Runs a task every ``duration`` in a thread."""
        self.call_every(duration, name, task.run_due)

    def call_every(self, duration: timedelta, name: str, call: Callable[[datetime], object]) -> None:
        """Calls a function with the current time every ``duration``, in a thread."""
        self.every(duration, name, self._in_thread(call))

    def call_weekly(
        self,
        name: str,
        call: Callable[[datetime], object],
        *,
        day: str = "mon",
        hour: int = 8,
        minute: int = 0,
        timezone: str = "UTC",
    ) -> None:
        """Calls a function with the current time once a week, in a thread."""
        due = CronTrigger(day_of_week=day, hour=hour, minute=minute, timezone=timezone)
        self._scheduler.add_job(self._guarded(name, self._in_thread(call)), due, id=name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the scheduled tasks."""
        return tuple(job.id for job in self._scheduler.get_jobs())

    async def run(self, name: str) -> None:
        """Runs one task now, as its schedule would."""
        await self._scheduler.get_job(name).func()

    def run_soon(self, name: str) -> None:
        """Runs one task now, from any thread; once more if it is in progress. No effect before ``start``."""
        if self._loop is not None and not self._stopping.is_set():
            self._loop.call_soon_threadsafe(self._start_now, name)

    def _start_now(self, name: str) -> None:
        job = self._scheduler.get_job(name)
        if job is not None and not self._stopping.is_set():
            started = asyncio.ensure_future(job.func())
            self._started.add(started)
            started.add_done_callback(self._started.discard)

    def start(self) -> None:
        """Starts the schedule; requires a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._scheduler.start()

    def stopping(self) -> bool:
        """True after ``stop`` was called; long tasks check it between their steps."""
        return self._stopping.is_set()

    async def stop(self) -> None:
        """Starts no more runs and waits for those in flight: a stop never interrupts a cycle."""
        self._stopping.set()
        self._scheduler.pause()
        if self._running:
            await asyncio.wait(self._running)
        self._scheduler.shutdown(wait=False)

    def _in_thread(self, call: Callable[[datetime], object]) -> Callable[[], Awaitable[object]]:
        return lambda: asyncio.to_thread(call, self._clock.now())

    def _guarded(self, name: str, work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[None]]:
        """Returns the work with a failure boundary: a failure is logged with its task, and the schedule continues.

        A run that is due while the task is in progress follows it.
        """

        async def run() -> None:
            if name in self._again:
                self._again[name] = True
                return
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._running.add(ended)
            try:
                due = True
                while due and not self._stopping.is_set():
                    self._again[name] = False
                    await _bounded(name, work)
                    due = self._again[name]
            finally:
                self._again.pop(name, None)
                self._running.discard(ended)
                ended.set_result(None)

        return run


async def _bounded(name: str, work: Callable[[], Awaitable[Any]]) -> None:
    try:
        await work()
    except StoreUnavailableError as error:
        _log.error("job_failed", job=name, error=error.message, hint=error.hint)
    except Exception as error:  # noqa: BLE001 - a failed task must not stop the platform
        _log.exception("job_failed", job=name, error=str(error))
