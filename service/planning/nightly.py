"""The nightly tier: fits and the margin that suits, for every service once a day, until the next midnight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from types import MappingProxyType

from outrider import log
from outrider.model import EntityRef, Floats, Why, Window
from planner.capacity.plan import LOAD
from planner.forecast import Calendar, Fits, NightlyDecision, fit_nightly
from planner.forecast.forecaster import DEFAULT_MODELS
from planner.forecast.nightly_fit import reason_of
from planner.replay.margins import best_margin
from service.planning.fanout import fan_out

_log = log.get("nightly")
_RETRY_AFTER = timedelta(hours=1)
"""A night whose processes died is begun anew so much later: soon enough for the day, too late for a loop."""


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
    lead: timedelta | None = None
    models: tuple[str, ...] = DEFAULT_MODELS


@dataclass(frozen=True, slots=True)
class Made:
    """What a night found of one service; ``margin`` is None where no start-up time is known, or none was found."""

    decided: NightlyDecision
    margin: float | None


def fit_one(night: Night) -> Made:
    """The fits and the margin of one service: what is spread over processes or a cluster.

    An error in either is told in the service's own plan.
    """
    try:
        decided = _decided(night)
    except Exception as error:  # noqa: BLE001 - one odd history may cost nobody else the night
        decided = NightlyDecision(night.fits, notes=(Why("plan.why_no_night", {"error": reason_of(error)}),))
    if night.lead is None:
        return Made(decided, None)
    try:
        return Made(decided, best_margin(night.times, night.values, night.step, night.lead))
    except Exception as error:  # noqa: BLE001 - nor may its replay
        note = Why("plan.why_no_margin", {"error": reason_of(error)})
        return Made(replace(decided, notes=(*decided.notes, note)), None)


def _decided(night: Night) -> NightlyDecision:
    return fit_nightly(
        night.times,
        night.values,
        now=night.now,
        horizon=night.horizon,
        step=night.step,
        models=night.models,
        fits=night.fits,
        calendar=night.calendar,
    )


class Nightly:
    """Fits once a day, in a thread that hands the work to processes or a Ray cluster; plans never wait for it."""

    def __init__(self, workers: int, ray_address: str | None, *, models: Sequence[str] = DEFAULT_MODELS) -> None:
        """``models`` are those of ``FORECASTERS`` that are fitted; margins are found in any case."""
        self._models = tuple(models)
        self._workers = workers
        self._ray_address = ray_address
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nightly")
        self._running: Future[dict[EntityRef, Made]] | None = None
        self._day: date | None = None
        self._begun: datetime | None = None
        self._failed = False
        self._made: dict[EntityRef, Made] = {}

    def made(self) -> dict[EntityRef, NightlyDecision]:
        """What the newest night decided by service, as far as it is finished, where there is anything to say."""
        return {service: each.decided for service, each in self._newest().items() if _says(each.decided)}

    def margins(self) -> dict[EntityRef, float]:
        """The newest margins by service, as far as they are finished."""
        return {service: each.margin for service, each in self._newest().items() if each.margin is not None}

    def _newest(self) -> dict[EntityRef, Made]:
        if self._running is not None and self._running.done():
            running, self._running = self._running, None
            error = running.exception()
            if error is None:
                self._made = running.result()
            else:
                self._failed = True
                _log.warning("nightly_failed", error=str(error)[:200])
        return self._made

    def start_if_due(
        self,
        history: Window,
        services: Sequence[EntityRef],
        now: datetime,
        horizon: timedelta,
        calendar: Calendar,
        leads: Mapping[EntityRef, timedelta] = MappingProxyType({}),
    ) -> bool:
        """Begin with a day that was not begun yet, unless the last one still runs. ``leads``: how long starts take.

        Days are those of the calendar's zone, at whose midnights fits lie: they are evaluated for a day past theirs
        and the horizon, no further. A night that failed is tried again after an hour.
        """
        self._newest()
        day = now.astimezone(calendar.clock()).date()
        again = self._failed and self._begun is not None and now - self._begun >= _RETRY_AFTER
        if self._running is not None or (self._day == day and not again):
            return False
        self._day, self._begun, self._failed = day, now, False
        rows = {service: row for row, service in enumerate(history.entities)}
        known = [service for service in services if service in rows]
        loads = history.column(LOAD)
        nights = [
            Night(
                history.times,
                loads[rows[each]],
                now,
                history.step,
                horizon,
                calendar,
                self._made[each].decided.fits if each in self._made else Fits(),
                leads.get(each),
                self._models,
            )
            for each in known
        ]
        self._running = self._thread.submit(self._fit, known, nights)
        return True

    def close(self) -> None:
        """Wait for fits in the making."""
        self._thread.shutdown(wait=True)

    def _fit(self, services: Sequence[EntityRef], nights: Sequence[Night]) -> dict[EntityRef, Made]:
        found = fan_out(fit_one, nights, workers=self._workers, ray_address=self._ray_address, progress=_tell)
        return dict(zip(services, found, strict=True))


def _says(decided: NightlyDecision) -> bool:
    return bool(decided.fits.requested or decided.notes)


def _tell(done: int, count: int) -> None:
    """Logs about every tenth."""
    if done % max(1, count // 10) == 0 or done == count:
        _log.info("nightly_fits", done=done, services=count)
