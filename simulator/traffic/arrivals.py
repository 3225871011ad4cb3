"""Load: a request rate as a pure function of time, with Poisson arrivals.

The rate at any time needs no state, so history, live fleet and true forecasts agree. Time is unix seconds; the day's
shape is in UTC. Only retries have state: they follow earlier failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
from scipy.special import betaincinv

from outrider.model import Floats
from simulator.effects import ServiceEffects
from simulator.engine.engine import EngineBank
from simulator.spec.fleets import FleetSpec, Lengths, ServiceSpec, TrafficSpec
from simulator.traffic import shapes
from simulator.traffic.gateway import GatewayCounters
from simulator.traffic.shapes import SHAPES, Load

__all__ = ["SHAPES", "Arrivals", "Traffic", "fit_to_engine", "rates", "with_load", "within_slo"]

RATE_SECONDS = 10.0
CACHE_CONCENTRATION = 6.0
MOST_SHARED = 0.98  # maximum cached share of a prompt
HIT_LEVELS = 1024  # size of the quantile table of cached shares
# Up to this share of its capacity a service keeps a TTFT P99 below 2 s; at 0.74 it is 1.3 to 2.4 s. Measured over 20
# minutes of steady load on both services of the drill fleet.
SERVED_RATIO = 0.7
# A client that aborts does so within these seconds of its request.
LEAVES_SECONDS = (0.5, 4.0)
LATE_SECONDS = 10.0  # a client may retry without a first token by then
BACKOFF_SECONDS = 3.0  # mean pause before a retry
HANGS_UP_RATIO = 0.5  # share of retries that close the first connection; otherwise its work continues
SHIFTED_PROMPT, SHIFTED_OUTPUT = 1.3, 0.85  # factors of a service without tenants after a complete mix shift


def load_of(service: ServiceSpec, times: Floats, seed: int) -> Load:
    """Returns the load of a service at ``times``, its rate in requests/s."""
    result = shapes.load(service.traffic, times, shapes.salt_of(seed, service.name))
    peak = service.traffic.peak_ratio * service.capacity_per_second()
    return replace(result, rate=np.asarray(peak * result.rate, dtype=np.float64))


def rates(service: ServiceSpec, times: Floats, seed: int) -> Floats:
    """Returns requests/s at ``times``, without faults. The same seed and time give the same rate."""
    return load_of(service, times, seed).rate


def with_load(
    spec: FleetSpec, shape: str, event_at: float | None = None, event_factor: float | None = None
) -> FleetSpec:
    """Returns the specification with every service under a load shape, whose event starts at ``event_at`` (unix).

    Raises UsageError for an unknown shape.
    """
    shapes.load(TrafficSpec(shape=shape if shape != "trace" else "steady"), np.zeros(1), 0)
    return replace(
        spec,
        services=tuple(
            replace(
                service,
                traffic=replace(service.traffic, shape=shape, event_at=event_at, event_factor=event_factor),
            )
            for service in spec.services
        ),
    )


def within_slo(spec: FleetSpec, times: Floats, seed: int) -> FleetSpec:
    """Returns the specification with loads that each service serves at ``times`` without one of its replicas.

    The event of the load becomes milder first, then the whole day.
    """
    return replace(spec, services=tuple(_within_slo(service, times, seed) for service in spec.services))


def _within_slo(service: ServiceSpec, times: Floats, seed: int) -> ServiceSpec:
    limit = SERVED_RATIO * service.capacity_per_second(service.replicas - 1)
    highest = rates(service, times, seed).max()
    factor = service.traffic.event_factor
    if highest > limit and factor is not None and factor > 1.0:
        usual = rates(_with(service, event_factor=1.0), times, seed).max()
        kept = np.clip((limit - usual) / max(highest - usual, 1e-9), 0.0, 1.0)
        service = _with(service, event_factor=1.0 + (factor - 1.0) * float(kept))
        highest = rates(service, times, seed).max()
    lower = min(1.0, limit / highest)
    return _with(service, peak_ratio=service.traffic.peak_ratio * float(lower))


def _with(service: ServiceSpec, **changes: float) -> ServiceSpec:
    return replace(service, traffic=replace(service.traffic, **changes))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests of one slice, in order of arrival: parallel arrays.

    ``service`` is an index into the spec; ``computed`` are the prompt tokens that the cache lacks; ``tenant`` is an
    index into the service's tenants (0 without tenants). ``aborts_at`` is the time at which the client aborts (unix
    seconds, inf: never). ``bad`` requests get status 400 from the HTTP server.
    """

    service: np.ndarray
    at: Floats
    prompt: Floats
    computed: Floats
    output: Floats
    tenant: np.ndarray
    aborts_at: Floats
    bad: np.ndarray

    def __len__(self) -> int:
        """Number of requests."""
        return int(self.at.size)

    def selected(self, chosen: np.ndarray) -> Arrivals:
        """Returns the chosen requests (bool for each)."""
        return Arrivals(**{part.name: getattr(self, part.name)[chosen] for part in fields(self)})

    @staticmethod
    def joined(parts: Sequence[Arrivals]) -> Arrivals:
        """Returns the requests of several slices, in the order given."""
        return Arrivals(
            **{one.name: np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Arrivals)}
        )


@dataclass(slots=True)
class _TrafficChange:
    """Factors of current requests relative to the default, each of shape (services,).

    ``burst`` is that of the mean prompt of a service, due to tokens that its largest tenant adds to its prompts.
    """

    prompt: Floats
    burst: Floats
    output: Floats
    cached: Floats
    shift: Floats
    retries: Floats


class Traffic:
    """Draws the arrivals of every service of a fleet. ``edge`` has the counters of its gateway."""

    def __init__(self, spec: FleetSpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        size = len(spec.services)
        self._levers = ServiceEffects(size)
        self._bank: EngineBank | None = None
        self._service_of_slot = np.empty(0, dtype=np.int64)
        self._edge = GatewayCounters(size)
        self._lengths = _lengths_of(spec.services)
        self._random = np.random.default_rng([seed, 1])
        self._slot = -1.0
        self._usual = np.zeros(size)
        self._shape = _TrafficChange(*np.ones((4, size)), *np.zeros((2, size)))
        self._coming_back = np.zeros(size, dtype=np.int64)
        self._failed_before = np.zeros(size)
        self._late_before = 0.0
        self.prompt_tokens = np.zeros(self._lengths.shares.shape)  # accepted ones by service and tenant, monotonic

    def attend(self, effects: ServiceEffects, bank: EngineBank, service_of_slot: np.ndarray) -> None:
        """Sets the effects and the engine bank to follow; row i of the bank serves ``service_of_slot[i]``."""
        self._levers, self._bank, self._service_of_slot = effects, bank, service_of_slot

    @property
    def edge(self) -> GatewayCounters:
        """The gateway's current totals."""
        if self._bank is not None:
            self._edge.take(self._bank.counters, self._service_of_slot)
        return self._edge

    def rejected(self, service: np.ndarray) -> None:
        """Counts requests (one entry each) that the gateway rejects with 429."""
        self._edge.count("answered_429", service)

    def accepted(self, arrivals: Arrivals) -> None:
        """Counts the prompt tokens of requests that a replica takes, by tenant."""
        np.add.at(self.prompt_tokens, (arrivals.service, arrivals.tenant), arrivals.prompt)

    def unanswered(self, service: np.ndarray) -> None:
        """Counts requests (one entry each) that no engine took or finished: the gateway returns 503."""
        self._edge.count("answered_5xx", service)

    def rates(self, at: float) -> Floats:
        """Returns the clients' requests/s to each service at a time, without retries, shape (services,)."""
        # The shape and its noise are slow: one value serves RATE_SECONDS.
        slot = at // RATE_SECONDS
        if slot != self._slot:
            self._look_up(np.array([(slot + 0.5) * RATE_SECONDS]))
            self._slot = slot
        return np.asarray(self._usual * self._levers.rate_factor, dtype=np.float64)

    def draw(self, start: float, span: float, per_second: Floats) -> Arrivals:
        """Returns Poisson arrivals in [start, start + span) behind the gateway, including retries."""
        effects = self._levers
        counts = self._random.poisson(per_second * (1.0 - np.clip(effects.entry_fails, 0.0, 1.0)) * span)
        counts = counts + self._retried(start, span)
        total = int(counts.sum())
        at = start + span * np.sort(self._random.random(total))
        service = self._random.permutation(np.repeat(np.arange(counts.size), counts))
        if effects.gateway_error_ratio.any():
            lost = self._chosen(service, effects.gateway_error_ratio)
            self.unanswered(service[lost])
            service, at = service[~lost], at[~lost]
        result = self._lengths.draw(self._random, service, at, self._bent())
        if effects.bad_request_ratio.any():
            result = replace(result, bad=self._chosen(service, effects.bad_request_ratio))
        if effects.abort_ratio.any():
            leaves = at + self._random.uniform(*LEAVES_SECONDS, service.size)
            result = replace(result, aborts_at=np.where(self._chosen(service, effects.abort_ratio), leaves, np.inf))
        return result

    def _look_up(self, instant: Floats) -> None:
        for number, service in enumerate(self.spec.services):
            result = load_of(service, instant, self.seed)
            self._usual[number] = result.rate[0]
            for name in ("prompt", "output", "cached", "shift", "retries"):
                getattr(self._shape, name)[number] = getattr(result, name)[0]

    def _bent(self) -> _TrafficChange:
        effects, shape = self._levers, self._shape
        return _TrafficChange(
            shape.prompt * effects.prompt_factor,
            effects.tenant_prompt_factor,
            shape.output * effects.output_factor,
            shape.cached * effects.cached_factor,
            shape.shift,
            self._shape.retries,
        )

    def _chosen(self, service: np.ndarray, ratio: Floats) -> np.ndarray:
        return np.asarray(self._random.random(service.size) < ratio[service])

    def _retried(self, start: float, span: float) -> np.ndarray:
        """Returns the number of retries in a slice, by service."""
        ratio = np.clip(self._levers.retry_ratio + self._shape.retries, 0.0, 3.0)
        if not ratio.any():
            if not self._coming_back.any():
                return self._coming_back
        else:
            self._coming_back += self._random.poisson(ratio * self._disappointed(start, span))
        now = self._random.binomial(self._coming_back, -np.expm1(-span / BACKOFF_SECONDS))
        self._coming_back = self._coming_back - now
        self._edge.retries += now
        return np.asarray(now)

    def _disappointed(self, start: float, span: float) -> Floats:
        """Returns clients whose request failed or became late since the last slice, by service."""
        failed = self.edge.answered_5xx.copy()
        # The first call has no earlier count to compare with, so it causes no retries.
        since = np.where(self._late_before >= start - 2 * span, failed - self._failed_before, 0.0)
        self._failed_before, self._late_before = failed, start
        if self._bank is None:
            return since
        table, late = self._bank.table, start - LATE_SECONDS
        rows = np.flatnonzero((table.first > start) & (table.at <= late) & (table.at > late - span))
        hangs_up = rows[self._random.random(rows.size) < HANGS_UP_RATIO]
        table.leaves[hangs_up] = np.minimum(table.leaves[hangs_up], start)
        slow = np.bincount(self._service_of_slot[table.replica[rows]], minlength=since.size)
        return np.asarray(since + slow, dtype=np.float64)


class _LengthTable:
    """Request lengths by service and tenant: arrays of shape (services, tenants)."""

    def __init__(self, services: Sequence[ServiceSpec]) -> None:
        most = max(1, *(len(service.tenants) for service in services))
        rows = [[_tenant_lengths(service, place) for place in range(most)] for service in services]
        normal = np.array([[_normal_parameters(lengths) for lengths in row] for row in rows])
        self.normal = normal.reshape(-1, 4).T.copy()
        self.hits = _hits(np.array([lengths.cached_ratio for row in rows for lengths in row]))
        self.limit = np.array([service.engine.max_model_length for service in services], dtype=np.float64)
        self.shares = np.zeros((len(services), most))
        for number, service in enumerate(services):
            parts = [tenant.share for tenant in service.tenants] or [1.0]
            self.shares[number, : len(parts)] = np.array(parts) / sum(parts)
        self.last = np.array([max(0, len(service.tenants) - 1) for service in services])
        self.several = most > 1
        self.alone = np.array([len(service.tenants) < 2 for service in services])
        tokens = self.shares * np.array([[lengths.prompt_mean for lengths in row] for row in rows])
        self.largest = np.argmax(self.shares, axis=1)
        self.largest_ratio = tokens[np.arange(len(services)), self.largest] / tokens.sum(axis=1)

    def draw(
        self, random: np.random.Generator, service: np.ndarray, at: Floats, change: _TrafficChange | None
    ) -> Arrivals:
        """Returns request lengths, cut to the limits of their engine."""
        tenant = self._tenants(random, service, change)
        kind = service * self.shares.shape[1] + tenant
        drawn = random.standard_normal((2, service.size))
        prompt, prompt_sigma, output, output_sigma = (values[kind] for values in self.normal)
        prompt = np.exp(prompt + prompt_sigma * drawn[0])
        output = np.exp(output + output_sigma * drawn[1])
        longer = np.ones(service.size)
        if change is not None:
            factor = 1 + (change.burst - 1) / self.largest_ratio
            longer = np.where(tenant == self.largest[service], factor[service], 1.0)
            shift = np.where(self.alone, change.shift, 0.0)
            prompt *= np.maximum(change.prompt * (1 + (SHIFTED_PROMPT - 1) * shift), 1e-6)[service]
            output *= np.maximum(change.output * (1 + (SHIFTED_OUTPUT - 1) * shift), 1e-6)[service]
        limit = self.limit[service]
        known, prompt = (np.clip(np.round(tokens), 1.0, np.floor(limit * 0.75)) for tokens in (prompt, prompt * longer))
        output = np.clip(np.round(output), 1.0, limit - prompt)
        hit = self.hits[kind, random.integers(HIT_LEVELS, size=service.size)]
        if change is not None:
            hit = np.minimum(hit * change.cached[service], MOST_SHARED)
        computed = np.maximum(1.0, np.ceil(prompt - known + known * (1 - hit)))  # no cache has the added tokens
        stays, good = np.full(service.size, np.inf), np.zeros(service.size, dtype=bool)
        return Arrivals(service, at, prompt, computed, output, tenant, stays, good)

    def _tenants(self, random: np.random.Generator, service: np.ndarray, change: _TrafficChange | None) -> np.ndarray:
        if not self.several:
            return np.zeros(service.size, dtype=np.int64)
        shares = self.shares
        if change is not None and change.shift.any():
            shares = shares * (1.0 - change.shift[:, None])
            shares[np.arange(shares.shape[0]), self.last] += change.shift
        edges = np.cumsum(shares, axis=1)[service]
        result = (random.random(service.size)[:, None] >= edges).sum(axis=1)
        return np.asarray(np.minimum(result, self.last[service]))


def _hits(mean: Floats) -> Floats:
    """Returns cached prompt shares at ``HIT_LEVELS`` quantiles of beta distributions: (means, levels)."""
    level = (np.arange(HIT_LEVELS) + 0.5) / HIT_LEVELS
    first = CACHE_CONCENTRATION * mean[:, None] + 1e-9
    other = CACHE_CONCENTRATION * (1 - mean[:, None]) + 1e-9
    return np.asarray(betaincinv(first, other, level), dtype=np.float64)


@lru_cache(maxsize=64)
def _lengths_of(services: tuple[ServiceSpec, ...]) -> _LengthTable:
    return _LengthTable(services)


def _tenant_lengths(service: ServiceSpec, place: int) -> Lengths:
    own = service.tenants[place].lengths if place < len(service.tenants) else None
    return own or service.lengths


def _normal_parameters(lengths: Lengths) -> tuple[float, float, float, float]:
    """Returns mean and standard deviation of the logarithms of prompt and output lengths."""
    return (
        float(np.log(lengths.prompt_mean)) - lengths.prompt_sigma**2 / 2,
        lengths.prompt_sigma,
        float(np.log(lengths.output_mean)) - lengths.output_sigma**2 / 2,
        lengths.output_sigma,
    )


def fit_to_engine(
    random: np.random.Generator, services: Sequence[ServiceSpec], service: np.ndarray, at: Floats
) -> Arrivals:
    """Draws the default lengths of requests and cuts them to the limits of their engine."""
    return _lengths_of(tuple(services)).draw(random, service, at, None)
