"""Ingress of a service: failing requests, and missing requests.

*gateway-fault*: the blackbox probe gets errors or timeouts, while engines are healthy, nothing queues, and fewer
requests arrive than before. A probe that fails at DNS or TLS is another fault. *traffic-drop*: far fewer requests than
before and than forecast (or than the baseline without a usable forecast), while probes succeed. Calendar days, lost
engine data and the end of a burst do not qualify. Long deviations from the forecast belong to ``traffic-forecast``.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import numpy as np

from detectors.base.condition_durations import no_verdicts
from detectors.base.findings import evidence, finding
from detectors.load import probe_window
from detectors.load.expected_traffic import RATE
from detectors.load.ingress_state import DROP_RATIO, FEWER, IngressDetector, IngressReading
from detectors.load.probe_window import Probes
from outrider.model import Evidence, Finding, Interval, NoVerdict, Window


class GatewayDetector(IngressDetector):
    """gateway-fault and traffic-drop."""

    name = "entry"
    state_version = 2

    def judge(self, window: Window, way: IngressReading, now: datetime) -> Iterable[Finding | NoVerdict]:
        """A finding per service with a failing ingress or missing requests."""
        unknown = np.asarray(np.isnan(way.rate).all(axis=1), dtype=np.bool_)
        quiet = no_verdicts(self.name, window.entities, window.column_status("svc_requests_total"), unknown)
        return (*self._findings(window, way, now), *quiet)

    def _findings(self, window: Window, way: IngressReading, now: datetime) -> list[Finding]:
        findings = []
        for row in np.flatnonzero(way.memory["shut"] | way.memory["dropped"]):
            rate, held = float(way.near[row]), float(way.before[row])
            if way.memory["shut"][row]:
                because: tuple[Evidence, ...] = (probe_window.why(way.probe, int(row)), _why_fewer(rate, held, FEWER))
                fault = "gateway-fault"
            else:
                fault = "traffic-drop"
                because = (*_why_dropped(rate, held, float(way.usual[row]), way.probe, int(row)), way.due.why(int(row)))
            since = way.memory["since"][row]
            entity = window.entities[row]
            findings.append(finding(self.name, entity, fault, score=0.9, since=since, now=now, because=because))
        return findings


def _why_fewer(rate: float, before: float, ratio: float) -> Evidence:
    return evidence(RATE, rate, "engines_get_less", Interval(ratio * before, None), rate=rate, before=before)


def _why_dropped(rate: float, before: float, usual: float, probe: Probes, row: int) -> tuple[Evidence, ...]:
    limit = Interval(DROP_RATIO * before, None)
    evidence_items = [evidence(RATE, rate, "arrivals_fell", limit, rate=rate, before=before, usual=usual)]
    if probe.sent[row] > 0:
        evidence_items.append(evidence("probe_success", 1.0, "way_in_works", None, asked=int(probe.sent[row])))
    return tuple(evidence_items)
