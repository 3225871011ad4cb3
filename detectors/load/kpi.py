"""kpi-drop: the KPI of a service is well below its earlier level while the service receives requests.

The owner's KPI has no known unit or direction; in the catalog it falls when things get worse. Well below means a
relative fall far outside the KPI's own scatter. With hardly any requests there is no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import ClassVar

import numpy as np

from detectors.base.condition_durations import newest, no_verdicts
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from detectors.load import arrivals
from outrider import windows
from outrider.model import EntityKind, Evidence, Finding, Interval, NoVerdict, SignalKey, Window, signal_keys
from outrider.topology import Topology

SPAN = timedelta(minutes=1)
FALL = 0.15
FALL_HOLDS = 0.08
SCALES = 5.0
FEWEST = 10.0  # responses per minute
LEARNT_SECONDS = 120.0
FROZEN_AT_MOST = 86400.0  # after this, the low level is the new normal
KPI, INVALID = "svc_kpi_value", "svc_output_invalid_ratio"
INVALID_MOST = 0.001  # SLO: output validity of 99.9 %


class KpiDetector(StatefulDetector):
    """One finding per service whose KPI has fallen."""

    name = "kpi"
    kind = EntityKind.SERVICE
    keys: tuple[SignalKey, ...] = signal_keys(KPI, INVALID, "svc_requests_total")
    window = timedelta(minutes=10)
    state_version = 1
    defaults: ClassVar[dict[str, bool | float]] = {
        "low": False,
        "since": np.nan,
        "usual": np.nan,
        "usual_weight": 0.0,
        "scatter": np.nan,
        "scatter_weight": 0.0,
    }

    def judge(
        self, window: Window, memory: Arrays, _topology: Topology, now: datetime
    ) -> Iterable[Finding | NoVerdict]:
        """A finding while the KPI is below its earlier level."""
        values = window.column(KPI)
        value = newest(window, values)
        columns = windows.recent(window, SPAN)
        recent = values[:, columns]
        answered = np.nan_to_num(window.column("svc_requests_total")[:, columns]).sum(axis=1)
        usual = np.where(memory["usual_weight"] >= LEARNT_SECONDS, memory["usual"], np.nan)
        with np.errstate(invalid="ignore"):
            spread = np.maximum(SCALES * memory["scatter"], FALL * np.abs(usual))
            below = (recent < (usual - spread)[:, None]) | np.isnan(recent)
            enough = (~np.isnan(recent)).sum(axis=1) >= np.minimum(3, max(1, recent.shape[1]))
            starts = below.all(axis=1) & enough & (answered >= FEWEST)
            holds = memory["low"] & (value < usual - FALL_HOLDS * np.abs(usual))
            holds &= window.times[-1] - memory["since"] < FROZEN_AT_MOST
            is_low = value < usual - spread
        memory["low"] = starts | holds
        begun = np.where(np.isnan(memory["since"]), window.times[-1] - SPAN.total_seconds(), memory["since"])
        memory["since"] = np.where(memory["low"], begun, np.nan)
        step, frozen = window.step.total_seconds(), memory["low"] | is_low | (answered < FEWEST)
        arrivals.follow(memory, "scatter", np.abs(value - memory["usual"]), step, frozen)
        arrivals.follow(memory, "usual", value, step, frozen)
        invalid = windows.mean_by_row(window.column(INVALID)[:, columns])
        result = [
            finding(
                self.name,
                window.entities[row],
                "kpi-drop",
                score=0.8,
                since=memory["since"][row],
                now=now,
                evidence_items=_evidence(float(value[row]), float(usual[row]), float(invalid[row])),
            )
            for row in np.flatnonzero(memory["low"])
        ]
        status = window.column_status(KPI)
        unknown = np.asarray(np.isnan(values).all(axis=1), dtype=np.bool_)
        quiet = no_verdicts(self.name, window.entities, status, unknown) if window.entities else ()
        return (*result, *quiet)


def _evidence(value: float, usual: float, invalid: float) -> tuple[Evidence, ...]:
    evidence_items = [evidence(KPI, value, "kpi_fell", Interval((1.0 - FALL) * usual, None), value=value, usual=usual)]
    if invalid > INVALID_MOST:
        evidence_items.append(
            evidence(INVALID, invalid, "answers_invalid_share", Interval(None, INVALID_MOST), share=invalid)
        )
    return tuple(evidence_items)
