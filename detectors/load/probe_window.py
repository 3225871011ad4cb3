"""Recent results of a service's blackbox probes: success, errors, no response, or no connection."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from detectors.base.condition_durations import Flags, newest
from detectors.base.findings import evidence
from outrider import windows
from outrider.model import Evidence, Floats, Interval, Window, signal_keys

PROBES = timedelta(minutes=2)
DNS_TLS = (3.0, 4.0, 18.0)  # probe_outcome_code: dns, tls, cert_expired
KEYS = signal_keys("probe_success", "probe_outcome_code", "probe_http_status_code", "probe_cert_expiry_seconds")


@dataclass(frozen=True, slots=True)
class Probes:
    """Probe results of the last two minutes, arrays of shape (entities,)."""

    failed: Floats
    sent: Floats
    failing_now: Flags
    unreached: Flags
    status: Floats


def read(window: Window) -> Probes:
    """The probes of the newest two minutes."""
    columns = windows.recent(window, PROBES)
    success = window.column("probe_success")[:, columns]
    failed = success < 0.5
    code = window.column("probe_outcome_code")[:, columns]
    status = window.column("probe_http_status_code")[:, columns]
    expiry = window.column("probe_cert_expiry_seconds")[:, columns]
    with np.errstate(invalid="ignore"):
        # Without an outcome: no response, and no valid certificate.
        no_way = np.isnan(code) & (status == 0) & ~(expiry > 0)
        unreached = failed & (np.isin(code, DNS_TLS) | no_way)
    counted = unreached.sum(axis=1)
    failing_now = np.asarray(failed[:, -max(1, (failed.shape[1] + 1) // 2) :].any(axis=1), dtype=np.bool_)
    return Probes(
        failed=failed.sum(axis=1).astype(np.float64),
        sent=(~np.isnan(success)).sum(axis=1).astype(np.float64),
        failing_now=failing_now,
        unreached=(counted > 0) & (2 * counted >= failed.sum(axis=1)),
        status=newest(
            window, np.where(window.column("probe_success") < 0.5, window.column("probe_http_status_code"), np.nan)
        ),
    )


def probe_evidence(probe: Probes, row: int) -> Evidence:
    """Failure of the probes of a row."""
    failed, sent, status = int(probe.failed[row]), int(probe.sent[row]), probe.status[row]
    text = "probe_answered_wrongly" if status > 0 else "probe_fails"
    return evidence("probe_success", 0.0, text, Interval(1.0, 1.0), failed=failed, asked=sent, status=f"{status:.0f}")
