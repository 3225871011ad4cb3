"""Load of the present half minute, for decisions between two slots of the history.

A saturated service completes what it can: its arrivals are the completed requests and the growth of its queue. Values
that are not fresh and trusted give no load (safety rule 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import sqrt

import numpy as np

from outrider.model import EntityRef, Floats, SignalKey, Window
from outrider.windows import believed
from planner.capacity.fluid_queue import PATIENCE_SECONDS

REQUESTS, QUEUE = SignalKey("svc_requests_per_second"), SignalKey("svc_queue_requests")
RUNNING, WAITING = SignalKey("engine_requests_running"), SignalKey("engine_requests_waiting")
KV_USED = SignalKey("engine_kv_cache_usage_ratio")
SERVICE_KEYS, ENGINE_KEYS = (REQUESTS, QUEUE), (RUNNING, WAITING, KV_USED)

WINDOW = timedelta(minutes=2)
"""Values to read; the newest of them must not be older than ``FRESH``."""

FRESH = timedelta(seconds=75)
NOTABLE = 0.1
"""Changes of the load below this share of it are noise, as is a queue below this share of the running sequences."""

SPREAD_SHARE = 0.5
"""A queue on fewer engines is theirs: more replicas would not serve it."""

_DEVIATIONS = 3.0
_SAMPLES = 2
_LEAST_SHARE = 0.25
"""Of the calibrated rate: a measured rate below it is that of broken engines, not of slower requests."""


@dataclass(frozen=True, slots=True)
class PresentLoad:
    """Load of a service now; None if not trusted.

    ``rate`` are the requests per second completed in the last half minute, ``arrivals`` those and the growth of the
    queue, ``calm`` the mean rate of two minutes. ``running``, ``waiting`` and ``kv_replicas`` are sums over the
    engines. ``spread`` is the share of the engines with a queue.
    """

    rate: float | None = None
    arrivals: float | None = None
    calm: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_replicas: float | None = None
    spread: float | None = None

    @property
    def growth(self) -> float:
        """Requests per second that join the queue; 0 if it shrinks or is unknown."""
        return 0.0 if self.rate is None or self.arrivals is None else self.arrivals - self.rate

    @property
    def queued(self) -> float:
        """Waiting requests that more replicas would serve; 0 without a queue, or with one on few engines."""
        waiting = self.waiting or 0.0
        is_queue = waiting >= max(1.0, NOTABLE * (self.running or 0.0))
        return waiting if is_queue and (self.spread is None or self.spread >= SPREAD_SHARE) else 0.0

    def at_rate_of(self, service: PresentLoad) -> PresentLoad:
        """The load of a pool: the requests of its service, and its own engines. Its queue may grow on its own."""
        return replace(self, rate=service.rate, arrivals=service.rate, calm=service.calm)


UNKNOWN = PresentLoad()


def exceeds(load: float, bound: float, seconds: float = 30.0) -> bool:
    """True if a mean load over ``seconds`` is above a bound by more than noise: a tenth and three deviations."""
    return load > bound * (1.0 + NOTABLE) + _DEVIATIONS * sqrt(max(bound, 0.0) / seconds)


def present_loads(
    services: Window, engines: Window, members: Mapping[EntityRef, Sequence[EntityRef]], now: datetime
) -> dict[EntityRef, PresentLoad]:
    """Returns the present load of every service of ``members``, which maps it to its replicas.

    ``services`` has ``SERVICE_KEYS``, ``engines`` has ``ENGINE_KEYS``; both end now.
    """
    rows = {entity: row for row, entity in enumerate(services.entities)}
    rates, queues = (believed(services, key) for key in SERVICE_KEYS)
    newest = {key: _newest(engines, key, now) for key in ENGINE_KEYS}
    row_of = {entity: row for row, entity in enumerate(engines.entities)}
    result = {}
    for service, replicas in members.items():
        chosen = [row_of[replica] for replica in replicas if replica in row_of]
        sums = {key: _sum(values[chosen]) for key, values in newest.items()}
        row = rows.get(service)
        load = (None, None, None, None) if row is None else _rates(services.times, rates[row], queues[row], now)
        rate, arrivals, calm, queue = load
        waits = newest[WAITING][chosen]
        known = waits[~np.isnan(waits)]
        result[service] = PresentLoad(
            rate, arrivals, calm, sums[RUNNING], _larger(sums[WAITING], queue), sums[KV_USED],
            float((known > 0).mean()) if known.size else None,
        )  # fmt: skip
    return result


def replicas_for_queue(
    present: PresentLoad, calibrated: float, ready: int, lead: timedelta, drain: timedelta, buffer: float
) -> int | None:
    """Replicas that serve the arrivals with the buffer, and drain the queue within ``drain``. None without a queue.

    ``calibrated`` are requests per second of one replica; if saturated replicas serve fewer, their rate counts. The
    queue is the one expected when replicas ordered now serve, after ``lead``: no longer than clients wait.
    """
    if not present.queued or present.rate is None or present.arrivals is None or calibrated <= 0:
        return None
    measured = present.rate / ready if ready else calibrated
    each = min(calibrated, max(measured, _LEAST_SHARE * calibrated))
    grown = present.queued + present.growth * lead.total_seconds()
    queue = min(grown, max(present.queued, PATIENCE_SECONDS * present.rate))
    units = present.arrivals / each * (1.0 + buffer) + queue / (each * drain.total_seconds())
    return int(np.ceil(units - 1e-9))


def _rates(
    times: Floats, rates: Floats, queues: Floats, now: datetime
) -> tuple[float | None, float | None, float | None, float | None]:
    """Returns (rate, arrivals, mean rate of the window, newest queue)."""
    fresh = times >= (now - FRESH).timestamp()
    known = np.flatnonzero(np.isfinite(rates))
    queue = _last(queues[fresh])
    if not known.size or not fresh[known[-1]]:
        return None, None, None, queue
    rate = float(rates[known[-_SAMPLES:]].mean())
    return rate, rate + _growth(times, queues, fresh), float(rates[known].mean()), queue


def _growth(times: Floats, queues: Floats, fresh: np.ndarray) -> float:
    """Growth of the queue per second: the lower of the last two steps, so that one jump is none."""
    known = np.flatnonzero(np.isfinite(queues) & fresh)[-(_SAMPLES + 1) :]
    if known.size <= _SAMPLES:
        return 0.0
    steps = np.diff(queues[known]) / np.diff(times[known])
    return max(0.0, float(steps.min()))


def _newest(window: Window, key: SignalKey, now: datetime) -> Floats:
    """The newest fresh value of each entity, NaN without one."""
    values = believed(window, key)[:, window.times >= (now - FRESH).timestamp()]
    result = np.full(values.shape[0], np.nan)
    for column in range(values.shape[1]):
        result = np.where(np.isnan(values[:, column]), result, values[:, column])
    return result


def _sum(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.sum()) if known.size else None


def _last(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else None


def _larger(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)
