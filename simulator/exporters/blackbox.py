"""Services seen from outside: results of a generation probe at their ingress, and SDK counters of their owners.

Both are functions of the fleet and of the time since the last call, so that a page and a direct reading at the same
time agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.model import Floats
from simulator.fleet import Fleet
from simulator.hardware import coupling
from simulator.spec.fleets import ServiceSpec

PROBE_TOKENS = 16
PATIENCE_SECONDS = 10.0
NETWORK_SECONDS = 0.018  # DNS, connection and TLS handshake from another region
SCATTER = 0.04  # relative scatter of request latencies
CERTIFICATE_SECONDS = 90 * 86400.0
RENEWED_BEFORE_SECONDS = 30 * 86400.0
REASONS = {"garbled": 0.6, "repeated": 0.3, "empty": 0.1}  # shares of invalid outputs by reason
# Without faults, two outputs in ten thousand are invalid; the SLO target of validity is 99.9 %.
INVALID_WHEN_WELL = 2e-4
VOTES_UP, VOTES_DOWN, VOTES_DOWN_INVALID = 0.04, 0.004, 0.25  # ratios: of valid, of valid, of invalid outputs
ACCEPTED_RATIO = 0.62  # share of outputs that users accept
FORGET_SECONDS = 300.0  # the KPI is 0 after this long without responses
KPI = "accepted_answers_ratio"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Probe result of each service, shape (services,).

    ``status`` is the HTTP status, 0 without a response. Latencies are NaN if nothing was generated; ``e2e`` is the
    total duration in any case. ``expiry_seconds`` until the certificate expires is NaN without a handshake.
    """

    success: Floats
    status: Floats
    ttft: Floats
    itl: Floats
    e2e: Floats
    expiry_seconds: Floats


class IngressProbe:
    """Sends a short generation request to the ingress of every service."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._services = len(fleet.spec.services)
        self._before: tuple[Floats, Floats] | None = None
        draw = np.random.default_rng([fleet.seed, 11])
        self._issued = fleet.at - draw.uniform(0.0, CERTIFICATE_SECONDS - RENEWED_BEFORE_SECONDS, self._services)
        self._name_lost = draw.random(self._services) < 0.5
        self._at = -1.0
        self._result: ProbeResult | None = None

    def probe(self) -> ProbeResult:
        """Returns the current probe result; two calls at the same time return the same."""
        if self._result is None or self._at != self._fleet.at:
            self._at, self._result = self._fleet.at, self._measure()
        return self._result

    def _measure(self) -> ProbeResult:
        fleet = self._fleet
        draw = np.random.default_rng([fleet.seed, 12, int(fleet.at)])
        luck, noise = draw.random((3, self._services)), 1.0 + SCATTER * draw.standard_normal((2, self._services))
        entry = fleet.effects.services
        gone = np.full(self._services, fleet.effects.cluster.alive[0] < 0.5)
        shut = entry.entry_fails > 0.5
        slot = self._routed(luck[0])
        place = np.maximum(slot, 0)
        refused = luck[1] < entry.gateway_error_ratio
        served = (slot >= 0) & fleet.pods.ready[place]
        failed = luck[2] < coupling.failing_ratio(fleet)[place]
        hangs = served & (fleet.stalled[place] | ~self._reachable()[place])
        ttft = self._ttft() * noise[0]
        itl = (fleet.bank.step_time * coupling.stretch(fleet))[place] * noise[1]
        late = hangs | (ttft + PROBE_TOKENS * itl > PATIENCE_SECONDS)
        coreless = fleet.effects.slots.core_dead[place] > 0.5
        status = np.where(refused | ~served, 503.0, np.where(coreless, 503.0, np.where(failed, 500.0, 200.0)))
        status = np.where(gone | shut | (late & (status == 200.0)), 0.0, status)
        good = status == 200.0
        whole = NETWORK_SECONDS + ttft + (PROBE_TOKENS - 1) * itl
        quick = np.where(gone | (late & ~shut & (status == 0.0)), PATIENCE_SECONDS, NETWORK_SECONDS)
        return ProbeResult(
            success=np.where(good, 1.0, 0.0),
            status=status,
            ttft=np.where(good, ttft, np.nan),
            itl=np.where(good, itl, np.nan),
            e2e=np.where(good, whole, quick),
            expiry_seconds=np.where(gone | (shut & self._name_lost), np.nan, self._expiry(shut)),
        )

    def _expiry(self, shut: np.ndarray) -> Floats:
        """Returns seconds until the certificate expires. It is renewed a month before, unless a fault prevents it."""
        age = np.mod(self._fleet.at - self._issued, CERTIFICATE_SECONDS - RENEWED_BEFORE_SECONDS)
        return np.where(shut, -3600.0, CERTIFICATE_SECONDS - age)

    def _routed(self, luck: Floats) -> np.ndarray:
        """Returns the slot that each probe is routed to, -1 if no replica takes requests."""
        fleet, result = self._fleet, np.full(self._services, -1)
        weights = fleet.requests_per_second
        for service in range(self._services):
            mine = np.flatnonzero(fleet.pods.service_of_slot == service)
            heavy = weights[mine] if weights[mine].sum() > 0 else fleet.pods.ready[mine].astype(np.float64)
            if heavy.sum() > 0:
                result[service] = mine[np.searchsorted(np.cumsum(heavy) / heavy.sum(), luck[service])]
        return result

    def _reachable(self) -> np.ndarray:
        nodes = self._fleet.effects.nodes
        return np.asarray(coupling.on_slots(self._fleet, nodes.reachable * nodes.alive, 1.0) > 0.5)

    def _ttft(self) -> Floats:
        """Returns mean TTFT of each service since the last call; that of a healthy service in the first call."""
        counters, of_slot = self._fleet.bank.counters, self._fleet.pods.service_of_slot
        now = counters.sums["ttft"].copy(), counters.buckets["ttft"].sum(axis=1)
        before = self._before if self._before is not None else (np.zeros_like(now[0]), np.zeros_like(now[1]))
        self._before = now
        anew = now[1] < before[1]
        spent, count = (
            np.bincount(of_slot, np.where(anew, new, new - old), self._services)
            for new, old in zip(now, before, strict=True)
        )
        alone = np.array([_alone_seconds(service) for service in self._fleet.spec.services])
        return np.where(count > 0, spent / np.maximum(count, 1.0), alone)


def _alone_seconds(service: ServiceSpec) -> float:
    """Returns TTFT of a single request on an idle engine."""
    engine, lengths = service.engine, service.lengths
    computed = lengths.prompt_mean * (1 - lengths.cached_ratio)
    return float(engine.step_seconds + computed * engine.prefill_per_token_seconds)


class SdkCounters:
    """SDK counters of each service: running totals, shape (services,), and a KPI.

    Invalid outputs are counted by the current invalid ratio of each engine.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._services = len(fleet.spec.services)
        self._before: Floats | None = None
        self._at = -1.0
        self.answers = np.zeros(self._services)
        self._invalid = np.zeros(self._services)
        self._votes = np.zeros((self._services, 2))
        self.kpi = np.full(self._services, ACCEPTED_RATIO)
        self._answered_at = np.full(self._services, fleet.at)

    @property
    def invalid_by_reason(self) -> Floats:
        """Integer counts of invalid outputs, shape (services, reasons), in the order of ``REASONS``."""
        return np.asarray(np.floor(self._invalid[:, None] * np.array(list(REASONS.values())) + 1e-9), dtype=np.float64)

    @property
    def votes(self) -> Floats:
        """Integer counts of votes, shape (services, 2): up, down."""
        return np.asarray(np.floor(self._votes + 1e-9), dtype=np.float64)

    def update(self) -> None:
        """Counts the responses since the last call."""
        fleet = self._fleet
        if self._at == fleet.at:
            return
        self._at = fleet.at
        plain = fleet.bank.counters.plain
        now = plain["finished_stop"] + plain["finished_length"]
        before = np.zeros_like(now) if self._before is None else self._before
        grown = np.where(now < before, now, now - before)
        self._before = now.copy()
        answers = np.bincount(fleet.pods.service_of_slot, grown, self._services)
        spoilt = np.clip(fleet.effects.slots.invalid_output_ratio + INVALID_WHEN_WELL, 0.0, 1.0)
        invalid = np.bincount(fleet.pods.service_of_slot, grown * spoilt, self._services)
        self.answers += answers
        self._invalid += invalid
        self._votes[:, 0] += VOTES_UP * (answers - invalid)
        self._votes[:, 1] += VOTES_DOWN * (answers - invalid) + VOTES_DOWN_INVALID * invalid
        draw = np.random.default_rng([fleet.seed, 13, int(fleet.at)]).standard_normal(self._services)
        valid = 1.0 - invalid / np.maximum(answers, 1.0)
        kpi = ACCEPTED_RATIO * fleet.effects.services.kpi_factor * valid * (1.0 + 0.01 * draw)
        self._answered_at = np.where(answers > 0, fleet.at, self._answered_at)
        silent = fleet.at - self._answered_at > FORGET_SECONDS
        self.kpi = np.where(answers > 0, np.clip(kpi, 0.0, 1.0), np.where(silent, 0.0, self.kpi))
