"""Blackbox probes at service entries: a failing certificate or name, or a whole cluster that is gone.

A probe that fails at the name or the handshake gives no information about engines. For one service it is the entry. It
is the cluster if all its services are affected and their internal view is gone as well. A gateway that returns an error
has completed the handshake and is not judged here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from detectors.base.condition_durations import Counts, Flags, at_index, measure_run, newest, newest_index, no_verdicts
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from outrider.model import (
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Evidence,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    SignalKey,
    Window,
)
from outrider.topology import Topology

FAILED_PROBES = 2  # one failed probe may be a network blip
DNS, TLS = 3, 4  # probe_outcome_code
QUICK_SECONDS = 5.0  # an unresponsive host takes the probe's whole timeout
EVENT_HOLD = timedelta(minutes=10)
_SEEN = ("svc_requests_total", "svc_requests_per_second")

_DEFAULTS = {"certified": False, "answered": False, "viewed": False}


@dataclass(frozen=True, slots=True)
class _Entries:
    """The entries of one window; arrays of shape (entities,). ``expiry`` is NaN without a handshake."""

    window: Window
    memory: Arrays
    probed: Flags
    failing: Flags
    code: Floats
    expiry: Floats
    took: Floats
    since: Floats
    viewed: Flags


class BlackboxDetector(StatefulDetector):
    """cert-or-dns of a service and cluster-lost of a cluster; the second explains the first."""

    name = "outside"
    kind = EntityKind.SERVICE
    keys: tuple[SignalKey, ...] = tuple(
        map(
            SignalKey,
            (
                *("probe_success", "probe_outcome_code", "probe_cert_expiry_seconds", "probe_e2e_seconds"),
                *_SEEN,
            ),
        )
    )
    window = timedelta(minutes=5)
    state_version = 1
    defaults = _DEFAULTS

    def judge(
        self, window: Window, memory: Arrays, _topology: Topology, now: datetime
    ) -> Iterable[Finding | NoVerdict]:
        """Judges all entries together."""
        entries = _look(window, memory)
        lost = self._lost_clusters(entries, now)
        gone = {item.entity.cluster for item in lost}
        verdicts: list[Finding | NoVerdict] = [*lost]
        verdicts.extend(item for item in self._shut(entries, now) if item.entity.cluster not in gone)
        verdicts.extend(no_verdicts(self.name, window.entities, window.column_status("probe_success"), ~entries.probed))
        return verdicts

    def _lost_clusters(self, entries: _Entries, now: datetime) -> list[Finding]:
        """Clusters whose entries are all unreachable, and whose services have no internal data either."""
        handshake = ~np.isnan(entries.expiry) | np.isin(entries.code, (TLS,))
        out = entries.failing & ~handshake & entries.memory["answered"]
        dark = entries.memory["viewed"] & ~entries.viewed
        clusters: dict[str, list[int]] = defaultdict(list)
        for row in np.flatnonzero(entries.probed):
            clusters[entries.window.entities[row].cluster].append(int(row))
        findings = []
        for cluster, rows in clusters.items():
            if not (out[rows].all() and dark[rows].all()):
                continue
            whole = EntityRef(cluster, EntityKind.CLUSTER, None, cluster)
            item = evidence("probe_success", 0.0, "every_entry_gone", Interval(1.0, 1.0), services=len(rows))
            since = float(entries.since[rows].min())
            findings.append(
                finding(self.name, whole, "cluster-lost", score=0.95, since=since, now=now, evidence_items=(item,))
            )
        return findings

    def _shut(self, entries: _Entries, now: datetime) -> list[Finding]:
        """Entries at which every probe fails at the name or the handshake."""
        expired = entries.expiry <= 0
        by_outcome = np.isin(entries.code, (DNS, TLS))
        # Without a probe outcome: no handshake any more, and no timeout of an unresponsive host.
        bare = np.isnan(entries.code) & np.isnan(entries.expiry) & (entries.took < QUICK_SECONDS)
        nameless = bare & entries.memory["certified"] & entries.viewed
        orders = _orders(entries.window, now)
        findings = []
        for row in np.flatnonzero(entries.failing & entries.memory["answered"] & (expired | by_outcome | nameless)):
            service = entries.window.entities[row]
            evidence_items = _outage_evidence(entries, int(row), orders.get(service))
            sure = bool(expired[row] or by_outcome[row]) or service in orders
            findings.append(
                finding(
                    self.name,
                    service,
                    "cert-or-dns",
                    score=0.95 if sure else 0.75,
                    since=float(entries.since[row]),
                    now=now,
                    evidence_items=evidence_items,
                )
            )
        return findings


def _look(window: Window, memory: Arrays) -> _Entries:
    success, expiry = window.column("probe_success"), window.column("probe_cert_expiry_seconds")
    seen = ~np.isnan(success)
    run = measure_run(seen, np.nan_to_num(success, nan=1.0) < 0.5, window.times)
    at: Counts = newest_index(seen)
    viewed = np.zeros(len(window.entities), dtype=np.bool_)
    for name in _SEEN:
        viewed |= ~np.isnan(newest(window, window.column(name)))
    memory["answered"] = memory["answered"] | (success >= 0.5).any(axis=1)
    memory["certified"] = memory["certified"] | (~np.isnan(expiry) & (success >= 0.5)).any(axis=1)
    memory["viewed"] = memory["viewed"] | viewed
    value = newest(window, success)
    return _Entries(
        window=window,
        memory=memory,
        probed=~np.isnan(value),
        failing=(value < 0.5) & (run.scrapes >= FAILED_PROBES),
        code=at_index(window.column("probe_outcome_code"), at),
        expiry=at_index(expiry, at),
        took=at_index(window.column("probe_e2e_seconds"), at),
        since=window.times[run.start],
        viewed=viewed,
    )


def _orders(window: Window, now: datetime) -> dict[EntityRef, Event]:
    """Failed certificate orders reported by a certificate manager, by service."""
    return {
        event.entity: event
        for event in window.events
        if event.kind is EventKind.KUBERNETES
        and now - EVENT_HOLD < event.at <= now
        and event.attributes.get("type") == "Warning"
        and "certificate" in event.attributes.get("text", "").lower()
    }


def _outage_evidence(entries: _Entries, row: int, order: Event | None) -> tuple[Evidence, ...]:
    expiry, code = float(entries.expiry[row]), entries.code[row]
    if expiry <= 0:
        days = round(-expiry / 86400.0, 1)
        result = [evidence("probe_cert_expiry_seconds", expiry, "certificate_over", Interval(0.0, None), days=days)]
    elif code == DNS:
        result = [evidence("probe_outcome_code", DNS, "name_not_found", Interval(0.0, 0.0))]
    elif code == TLS:
        result = [evidence("probe_outcome_code", TLS, "handshake_fails", Interval(0.0, 0.0))]
    else:
        result = [evidence("probe_success", 0.0, "no_handshake", Interval(1.0, 1.0))]
    if order is not None:
        result.append(evidence("probe_success", 0.0, "certificate_not_issued", line=order.attributes["text"][:160]))
    return tuple(result)
