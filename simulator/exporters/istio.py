"""The page of an Istio ingress gateway: one per cluster, in front of every service.

Envoy writes no HELP lines. A series appears with its first request. The gateway reports as the source, and its own
counters survive an engine restart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.model import Floats
from simulator.engine.counters import HISTOGRAMS
from simulator.exporters.text import go_number, header, labels
from simulator.fleet import Fleet
from simulator.spec.parts import ServiceSpec
from simulator.traffic.gateway import GatewayCounters

# Envoy's default histogram bounds, milliseconds.
BOUNDS = (
    *(0.5, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0, 30000.0),
    *(60000.0, 300000.0, 600000.0, 1800000.0, 3600000.0),
)
GATEWAY_SECONDS = 0.002  # latency added by the gateway
# Response code and flags, and duration of the response (None: the engines' durations). DC: client disconnected,
# UH: no healthy upstream host.
_CODES: tuple[tuple[str, str, float | None], ...] = (
    ("200", "-", None),
    ("400", "-", 0.004),
    ("429", "-", 0.001),
    ("499", "DC", 60.0),
    ("500", "-", 0.02),
    ("503", "UH", 0.001),
)


class IstioPage:
    """Writes the page."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._page = b""
        self._counted: Floats = np.empty((0, 0))
        self._failed = np.empty(0)  # 5xx responses of each slot's engine at the last page
        self._by_engines = np.empty(0)
        self._durations: Floats = np.empty((0, 0))
        self._shares: Floats = np.empty((0, 0))
        self._buckets: Floats = np.empty((0, 0, 0))

    def page(self, fleet: Fleet) -> bytes:
        """Returns the page."""
        if self._at != fleet.at:
            self._count(fleet)
            self._page, self._at = self._write(fleet).encode(), fleet.at
        return self._page

    def _count(self, fleet: Fleet) -> None:
        """Adds the requests since the last page to the buckets of each code."""
        services, slots = len(fleet.spec.services), fleet.bank.size
        if self._counted.size == 0:
            self._counted = np.zeros((services, len(_CODES)))
            self._buckets = np.zeros((services, len(_CODES), len(BOUNDS) + 1))
            self._failed, self._by_engines = np.zeros(slots), np.zeros(services)
            self._durations = np.zeros((slots, len(HISTOGRAMS["e2e"]) + 1))
            self._shares = np.zeros((services, len(BOUNDS) + 1))
            self._shares[:, -1] = 1.0
        now = self._totals(fleet)
        grown = now - self._counted
        self._learn(fleet)
        for column, (_, _, seconds) in enumerate(_CODES):
            if seconds is not None:
                self._buckets[:, column, np.searchsorted(BOUNDS, seconds * 1000.0)] += grown[:, column]
                continue
            whole = np.floor(self._shares * grown[:, column, None])
            whole[np.arange(services), np.argmax(self._shares, axis=1)] += grown[:, column] - whole.sum(axis=1)
            self._buckets[:, column] += whole
        self._counted = now

    def _totals(self, fleet: Fleet) -> Floats:
        """Returns requests by service and code. Errors without an engine error are the gateway's own."""
        edge: GatewayCounters = fleet.traffic.edge
        failed = fleet.bank.counters.plain["http_5xx"]
        grown = np.where(failed >= self._failed, failed - self._failed, failed)
        self._failed = failed.copy()
        of_slot = fleet.pods.service_of_slot
        self._by_engines = np.minimum(
            self._by_engines + np.bincount(of_slot, grown, self._by_engines.size), edge.answered_5xx
        )
        columns = (
            edge.answered_2xx,
            edge.answered_4xx,
            edge.answered_429,
            edge.disconnects,
            self._by_engines,
            edge.answered_5xx - self._by_engines,
        )
        # Keep each column monotonic: requests that move to another column are held back until it has caught up.
        return np.maximum(np.stack(columns, axis=1), self._counted)

    def _learn(self, fleet: Fleet) -> None:
        """Updates response times since the last page: shares by bucket, unchanged without requests."""
        seen = fleet.bank.counters.buckets["e2e"]
        grown = np.where(
            seen.sum(axis=1, keepdims=True) >= self._durations.sum(axis=1, keepdims=True), seen - self._durations, seen
        )
        self._durations = seen.copy()
        summed = np.zeros((self._shares.shape[0], grown.shape[1]))
        np.add.at(summed, fleet.pods.service_of_slot, np.maximum(grown, 0.0))
        edges = np.array([0.0, *HISTOGRAMS["e2e"]]) + GATEWAY_SECONDS
        for service in np.flatnonzero(summed.sum(axis=1) > 0):
            reached = np.concatenate([[0.0], np.cumsum(summed[service, :-1])]) / summed[service].sum()
            below = np.interp(np.array(BOUNDS) / 1000.0, edges, reached)
            self._shares[service] = np.diff(np.concatenate([[0.0], below, [1.0]]))

    def _write(self, fleet: Fleet) -> str:
        requests = [header("istio_requests_total", "counter", "")]
        durations = [header("istio_request_duration_milliseconds", "histogram", "")]
        for number, service in enumerate(fleet.spec.services):
            for column, (code, flags, seconds) in enumerate(_CODES):
                total = float(self._counted[number, column])
                if total == 0:
                    continue
                row = labels(_labels(fleet.spec.cluster, service, code, flags))
                requests.append(f"istio_requests_total{row} {go_number(total)}\n")
                durations += _histogram(row, self._buckets[number, column], seconds)
        return "".join([*requests, *durations])


def _histogram(row: str, counts: Floats, seconds: float | None) -> Sequence[str]:
    """Returns the lines of one histogram. Its sum uses the middle of each bucket."""
    name, start = "istio_request_duration_milliseconds", row[:-1]
    reached = np.cumsum(counts).tolist()
    lower = np.array([0.0, *BOUNDS])
    middle = (lower + np.array([*BOUNDS, BOUNDS[-1]])) / 2 if seconds is None else np.full(lower.size, 1000.0 * seconds)
    bounds = [go_number(bound) for bound in BOUNDS] + ["+Inf"]
    lines = [
        f'{name}_bucket{start},le="{le}"}} {go_number(value)}\n' for le, value in zip(bounds, reached, strict=True)
    ]
    lines.append(f"{name}_sum{row} {go_number(float(np.round(counts @ middle, 3)))}\n")
    return [*lines, f"{name}_count{row} {go_number(reached[-1])}\n"]


def _labels(cluster: str, service: ServiceSpec, code: str, flags: str) -> dict[str, str]:
    gateway, namespace = "istio-ingressgateway", service.namespace
    return {
        "reporter": "source",
        "source_workload": gateway,
        "source_canonical_service": gateway,
        "source_canonical_revision": "latest",
        "source_workload_namespace": "istio-system",
        "source_principal": "unknown",
        "source_app": gateway,
        "source_version": "unknown",
        "source_cluster": cluster,
        "destination_workload": service.name,
        "destination_workload_namespace": namespace,
        "destination_principal": "unknown",
        "destination_app": service.name,
        "destination_version": "unknown",
        "destination_service": f"{service.name}.{namespace}.svc.cluster.local",
        "destination_canonical_service": service.name,
        "destination_canonical_revision": "latest",
        "destination_service_name": service.name,
        "destination_service_namespace": namespace,
        "destination_cluster": cluster,
        "request_protocol": "http",
        "response_code": code,
        "grpc_response_status": "",
        "response_flags": flags,
        "connection_security_policy": "unknown",
    }
