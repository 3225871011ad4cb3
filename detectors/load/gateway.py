"""Ingress of a service: failing requests, and missing requests.

*gateway-fault*: the blackbox probe gets errors or timeouts, while engines are healthy, nothing queues, and fewer
requests arrive than before. A probe that fails at DNS or TLS is another fault. *traffic-drop*: far fewer requests than
before and than forecast (or than the baseline without a usable forecast), while probes succeed. Calendar days, lost
engine data and the end of a burst do not qualify. On a holiday nearly all requests must be missing. Long deviations
from the forecast belong to ``traffic-forecast``.
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

    def judge(self, window: Window, ingress: IngressReading, now: datetime) -> Iterable[Finding | NoVerdict]:
        """A finding per service with a failing ingress or missing requests."""
        unknown = np.asarray(np.isnan(ingress.rate).all(axis=1), dtype=np.bool_)
        quiet = no_verdicts(self.name, window.entities, window.column_status("svc_requests_total"), unknown)
        return (*self._findings(window, ingress, now), *quiet)

    def _findings(self, window: Window, ingress: IngressReading, now: datetime) -> list[Finding]:
        findings = []
        for row in np.flatnonzero(ingress.memory["shut"] | ingress.memory["dropped"]):
            rate, held = float(ingress.near[row]), float(ingress.before[row])
            if ingress.memory["shut"][row]:
                evidence_items: tuple[Evidence, ...] = (
                    probe_window.probe_evidence(ingress.probe, int(row)),
                    _fewer_evidence(rate, held, FEWER),
                )
                fault = "gateway-fault"
            else:
                fault = "traffic-drop"
                evidence_items = (
                    *_drop_evidence(rate, held, float(ingress.usual[row]), ingress.probe, int(row)),
                    ingress.due.evidence(int(row)),
                )
            since = ingress.memory["since"][row]
            entity = window.entities[row]
            findings.append(
                finding(self.name, entity, fault, score=0.9, since=since, now=now, evidence_items=evidence_items)
            )
        return findings


def _fewer_evidence(rate: float, before: float, ratio: float) -> Evidence:
    return evidence(RATE, rate, "engines_get_less", Interval(ratio * before, None), rate=rate, before=before)


def _drop_evidence(rate: float, before: float, usual: float, probe: Probes, row: int) -> tuple[Evidence, ...]:
    limit = Interval(DROP_RATIO * before, None)
    evidence_items = [evidence(RATE, rate, "arrivals_fell", limit, rate=rate, before=before, usual=usual)]
    if probe.sent[row] > 0:
        evidence_items.append(evidence("probe_success", 1.0, "way_in_works", None, asked=int(probe.sent[row])))
    return tuple(evidence_items)
