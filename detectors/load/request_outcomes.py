"""Failing requests of a service without queueing: client errors and client disconnects.

*bad-requests*: only the share of 4xx responses has risen. *client-aborts*: clients disconnect although responses are
on time. Both are compared with their earlier share, as every service has some. During queueing or engine errors,
disconnects are a consequence and not reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import ClassVar

import numpy as np

from detectors.base.condition_durations import Flags, no_verdicts
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from detectors.load import arrivals
from detectors.load.saturation import TTFT_EVENTS, TTFT_LIMIT_SECONDS, TTFT_QUANTILE
from outrider import windows
from outrider.model import (
    EntityKind,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    SignalKey,
    Window,
    signal_keys,
)
from outrider.topology import Topology
from outrider.vocabulary import catalog

SPAN = timedelta(minutes=1)
FEWEST = 20.0  # responses per minute; with fewer, a share depends on single clients
FEWEST_SUCH = 8.0
SIGMAS = 4.0
RISE = {"bad-requests": 0.05, "client-aborts": 0.10}  # of all responses, above the earlier share
HELD_SECONDS = 30.0  # in addition to the counted minute
FAILED_MOST = 0.02
_SIGNAL = {"bad-requests": "svc_refused_total", "client-aborts": "svc_abandoned_total"}
_TEXT = {"bad-requests": "refused_share", "client-aborts": "left_share"}
_SHORT = {"bad-requests": "refused", "client-aborts": "left"}


class RequestOutcomeDetector(StatefulDetector):
    """bad-requests and client-aborts of services."""

    name = "outcomes"
    kind = EntityKind.SERVICE
    keys: tuple[SignalKey, ...] = (
        *signal_keys(
            "svc_requests_total", "svc_failed_total", "svc_refused_total", "svc_abandoned_total", "svc_queue_requests"
        ),
        *catalog.signal("svc_ttft_seconds").bucket_keys,
    )
    window = timedelta(minutes=5)
    state_version = 1
    defaults: ClassVar[dict[str, float | bool]] = {
        name: value
        for short in _SHORT.values()
        for name, value in (
            (short, np.nan),
            (f"{short}_weight", 0.0),
            (f"{short}_since", np.nan),
            (f"{short}_on", False),
        )
    }

    def judge(
        self, window: Window, memory: Arrays, _topology: Topology, now: datetime
    ) -> Iterable[Finding | NoVerdict]:
        """A finding while a share is above its earlier level and nothing queues."""
        answered = windows.total(window, "svc_requests_total", SPAN)
        calm = _calm(window, answered)
        verdicts: list[Finding | NoVerdict] = []
        for fault, short in _SHORT.items():
            count = windows.total(window, _SIGNAL[fault], SPAN)
            share, above = _above(answered, count, memory[short], RISE[fault])
            above &= calm
            below = np.isfinite(share) & (share <= memory[short] + RISE[fault] / 2.0)
            since = memory[f"{short}_since"]
            begun = np.where(above & np.isnan(since), window.times[-1], since)
            memory[f"{short}_since"] = np.where(above | memory[f"{short}_on"], begun, np.nan)
            lasting = window.times[-1] - memory[f"{short}_since"] >= HELD_SECONDS
            memory[f"{short}_on"] = (above & lasting) | (memory[f"{short}_on"] & calm & ~below)
            before = memory[short].copy()
            frozen = above | memory[f"{short}_on"] | ~calm
            arrivals.follow(memory, short, share, window.step.total_seconds(), frozen)
            for row in np.flatnonzero(memory[f"{short}_on"]):
                observed, usual = float(share[row]), float(before[row])
                limit = Interval(None, usual + RISE[fault])
                item = evidence(_SIGNAL[fault], observed, _TEXT[fault], limit, share=observed, before=usual)
                started = memory[f"{short}_since"][row] - SPAN.total_seconds()
                verdicts.append(
                    finding(
                        self.name,
                        window.entities[row],
                        fault,
                        score=0.85,
                        since=started,
                        now=now,
                        evidence_items=(item,),
                    )
                )
        status = window.column_status("svc_refused_total")
        unknown = np.asarray(np.isnan(window.column("svc_refused_total")).all(axis=1), dtype=np.bool_)
        verdicts.extend(no_verdicts(self.name, window.entities, status, unknown))
        learning = ~unknown & np.isnan(memory["refused"])
        verdicts.extend(
            NoVerdict(self.name, window.entities[row], NoVerdictReason.WARMING_UP) for row in np.flatnonzero(learning)
        )
        return verdicts


def _above(answered: Floats, count: Floats, before: Floats, rise: float) -> tuple[Floats, Flags]:
    """The share of a minute's responses, and whether it is above the earlier one by more than chance."""
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(answered >= FEWEST, np.minimum(count / answered, 1.0), np.nan)
        spread = np.sqrt(np.maximum(before * (1.0 - before), 1.0 / answered) / answered)
        above: Flags = (share > before + rise) & (share > before + SIGMAS * spread) & (count >= FEWEST_SUCH)
    return share, above


def _calm(window: Window, answered: Floats) -> Flags:
    """True if responses are on time and the engines do not fail."""
    counted = windows.buckets(window, "svc_ttft_seconds", SPAN)
    late, _ = catalog.bucket_quantile(counted, catalog.signal("svc_ttft_seconds").bounds, TTFT_QUANTILE)
    slow = (counted.sum(axis=1) >= TTFT_EVENTS) & (np.nan_to_num(late) > TTFT_LIMIT_SECONDS)
    failed = np.nan_to_num(windows.total(window, "svc_failed_total", SPAN)) > FAILED_MOST * np.nan_to_num(answered)
    queue = np.nan_to_num(window.column("svc_queue_requests")[:, windows.recent(window, SPAN)])
    queueing = (queue > 0).all(axis=1) if queue.shape[1] else np.zeros(answered.size, dtype=np.bool_)
    calm: Flags = ~slow & ~failed & ~queueing
    return calm
