"""The nightly tier: Prophet, fitted for every service once a day, heard by the plans until the next midnight."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from outrider import log
from outrider.model import EntityRef, Floats, Window
from planner.forecast import Calendar, Fits, fit_by_night
from planner.plan import LOAD
from service.fanout import fan_out

_log = log.get("nightly")


@dataclass(frozen=True, slots=True)
class Night:
    """What one service's fits are made from; ``fits`` are those of the nights before."""

    times: Floats
    values: Floats
    now: datetime
    step: timedelta
    horizon: timedelta
    calendar: Calendar
    fits: Fits


def fit_one(night: Night) -> Fits:
    """The fits of one service: what is spread over processes or a cluster."""
    return fit_by_night(
        night.times,
        night.values,
        now=night.now,
        horizon=night.horizon,
        step=night.step,
        fits=night.fits,
        calendar=night.calendar,
    )


class Nightly:
    """Fits once a day, in a thread that hands the work to processes or a Ray cluster; plans never wait for it."""

    def __init__(self, workers: int, ray_address: str | None) -> None:
        self._workers = workers
        self._ray_address = ray_address
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nightly")
        self._running: Future[dict[EntityRef, Fits]] | None = None
        self._day: date | None = None
        self._made: dict[EntityRef, Fits] = {}

    def made(self) -> dict[EntityRef, Fits]:
        """The newest fits by service, as far as they are finished."""
        if self._running is not None and self._running.done():
            running, self._running = self._running, None
            error = running.exception()
            if error is None:
                self._made = running.result()
            else:
                _log.warning("nightly_failed", error=str(error)[:200])
        return self._made

    def start_if_due(
        self, history: Window, services: Sequence[EntityRef], now: datetime, horizon: timedelta, calendar: Calendar
    ) -> bool:
        """Begin with a day that was not begun yet, unless the last one still runs."""
        if self._day == now.date() or self._running is not None:
            return False
        self._day = now.date()
        rows = {service: row for row, service in enumerate(history.entities)}
        known = [service for service in services if service in rows]
        loads = history.column(LOAD)
        nights = [
            Night(history.times, loads[rows[each]], now, history.step, horizon, calendar, self._made.get(each, Fits()))
            for each in known
        ]
        self._running = self._thread.submit(self._fit, known, nights)
        return True

    def close(self) -> None:
        """Wait for fits in the making."""
        self._thread.shutdown(wait=True)

    def _fit(self, services: Sequence[EntityRef], nights: Sequence[Night]) -> dict[EntityRef, Fits]:
        found = fan_out(fit_one, nights, workers=self._workers, ray_address=self._ray_address, progress=_tell)
        return {service: fits for service, fits in zip(services, found, strict=True) if fits.made}


def _tell(done: int, count: int) -> None:
    """Logs about every tenth."""
    if done % max(1, count // 10) == 0 or done == count:
        _log.info("nightly_fits", done=done, services=count)
