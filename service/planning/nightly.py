"""Nightly fits: forecast models and bound rule of every service, once a day, valid until the next midnight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from types import MappingProxyType

from outrider import log
from outrider.model import EntityRef, Floats, ReasonText, Window
from planner.capacity.lead_bound import BoundRule
from planner.capacity.plan import LOAD
from planner.forecast import Calendar, Fits, NightlyDecision, fit_nightly
from planner.forecast.forecaster import DEFAULT_MODELS
from planner.forecast.nightly_fit import reason_of
from planner.replay.service_rule import best_rule
from service.planning.fanout import fan_out

_log = log.get("nightly")
_RETRY_AFTER = timedelta(hours=1)
"""Delay before a failed nightly run is retried."""


@dataclass(frozen=True, slots=True)
class Night:
    """Inputs of one service's fits; ``fits`` are those of earlier nights."""

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
class NightlyForecast:
    """Nightly result of one service; ``rule`` is None if the start-up time is unknown or the replay failed."""

    decision: NightlyDecision
    rule: BoundRule | None


def fit_one(night: Night) -> NightlyForecast:
    """Fits the models and the rule of one service; runs in worker processes or on a Ray cluster.

    An error in either is reported in the service's plan.
    """
    try:
        decision = _decide(night)
    except Exception as error:  # noqa: BLE001 - one bad history must not fail the other services
        decision = NightlyDecision(night.fits, notes=(ReasonText("plan.why_no_night", {"error": reason_of(error)}),))
    if night.lead is None:
        return NightlyForecast(decision, None)
    try:
        return NightlyForecast(decision, best_rule(night.times, night.values, night.step, night.lead))
    except Exception as error:  # noqa: BLE001 - as above
        note = ReasonText("plan.why_no_margin", {"error": reason_of(error)})
        return NightlyForecast(replace(decision, notes=(*decision.notes, note)), None)


def _decide(night: Night) -> NightlyDecision:
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
    """Fits once a day in a thread that uses worker processes or a Ray cluster; plans never wait for it."""

    def __init__(self, workers: int, ray_address: str | None, *, models: Sequence[str] = DEFAULT_MODELS) -> None:
        """``models`` are the ``FORECASTERS`` to fit; rules are always chosen."""
        self._models = tuple(models)
        self._workers = workers
        self._ray_address = ray_address
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nightly")
        self._running: Future[dict[EntityRef, NightlyForecast]] | None = None
        self._day: date | None = None
        self._started_at: datetime | None = None
        self._failed = False
        self._forecasts: dict[EntityRef, NightlyForecast] = {}

    def decisions(self) -> dict[EntityRef, NightlyDecision]:
        """Returns the decisions of the newest finished night, by service; empty decisions are left out."""
        return {service: night.decision for service, night in self._newest().items() if _has_content(night.decision)}

    def rules(self) -> dict[EntityRef, BoundRule]:
        """Returns the rules of the newest finished night, by service."""
        return {service: night.rule for service, night in self._newest().items() if night.rule is not None}

    def _newest(self) -> dict[EntityRef, NightlyForecast]:
        if self._running is not None and self._running.done():
            running, self._running = self._running, None
            error = running.exception()
            if error is None:
                self._forecasts = running.result()
            else:
                self._failed = True
                _log.warning("nightly_failed", error=str(error)[:200])
        return self._forecasts

    def start_if_due(
        self,
        history: Window,
        services: Sequence[EntityRef],
        now: datetime,
        horizon: timedelta,
        calendar: Calendar,
        leads: Mapping[EntityRef, timedelta] = MappingProxyType({}),
    ) -> bool:
        """Starts the fits of a new day, unless the last run is still active. ``leads`` are start-up times.

        Days begin at midnight in the calendar's time zone. Fits are valid for a day plus the horizon. A failed run is
        retried after an hour.
        """
        self._newest()
        day = now.astimezone(calendar.clock()).date()
        retry = self._failed and self._started_at is not None and now - self._started_at >= _RETRY_AFTER
        if self._running is not None or (self._day == day and not retry):
            return False
        self._day, self._started_at, self._failed = day, now, False
        rows = {service: row for row, service in enumerate(history.entities)}
        known = [service for service in services if service in rows]
        loads = history.column(LOAD)
        nights = [
            Night(
                history.times,
                loads[rows[service]],
                now,
                history.step,
                horizon,
                calendar,
                self._forecasts[service].decision.fits if service in self._forecasts else Fits(),
                leads.get(service),
                self._models,
            )
            for service in known
        ]
        self._running = self._thread.submit(self._fit, known, nights)
        return True

    def close(self) -> None:
        """Waits for running fits."""
        self._thread.shutdown(wait=True)

    def _fit(self, services: Sequence[EntityRef], nights: Sequence[Night]) -> dict[EntityRef, NightlyForecast]:
        results = fan_out(fit_one, nights, workers=self._workers, ray_address=self._ray_address, progress=_log_progress)
        return dict(zip(services, results, strict=True))


def _has_content(decision: NightlyDecision) -> bool:
    return bool(decision.fits.requested or decision.notes)


def _log_progress(done: int, count: int) -> None:
    """Logs about ten times per run."""
    if done % max(1, count // 10) == 0 or done == count:
        _log.info("nightly_fits", done=done, services=count)
