"""traffic-skew: one replica receives far more requests than its peers and has more in flight.

Compares arrivals with the median of at least two peers of the same model and GPU in the same service. A slow replica
(normal arrivals, more in flight) and a surge (all alike) do not qualify. Routing that was always uneven is intended,
so the earlier share counts too.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import ClassVar

import numpy as np

from detectors.base.condition_durations import Flags, gaps, newest, previous_index
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from detectors.load import arrivals
from detectors.statistics import peer_groups
from outrider import windows
from outrider.model import EntityKind, Finding, Floats, Interval, NoVerdict, SignalKey, Window, signal_keys
from outrider.topology import Topology

SPAN = timedelta(seconds=90)
SHARE = 1.5  # times the peers' median; least-loaded and prefix routing vary less over 90 s
SHARE_HOLDS = 1.25
IN_FLIGHT = 1.4
SIGMAS = 5.0
FEWEST = 20.0  # arrivals at a peer


class LoadImbalanceDetector(StatefulDetector):
    """One finding per replica that receives far more than its peers."""

    name = "skew"
    kind = EntityKind.REPLICA
    keys: tuple[SignalKey, ...] = signal_keys(
        "engine_http_requests_total",
        "engine_requests_finished_total",
        "engine_inflight_requests",
        "engine_requests_running",
        "engine_requests_waiting",
    )
    window = timedelta(minutes=5)
    state_version = 1
    defaults: ClassVar[dict[str, bool | float]] = {
        "skewed": False,
        "since": np.nan,
        "share": np.nan,
        "share_weight": 0.0,
    }

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """A finding while a replica receives far more than its peers; NoVerdict without two peers."""
        received, held = _received(window), _in_flight(window)
        group = peer_groups.groups(window.entities, topology) if window.entities else np.zeros(0, dtype=np.intp)
        usual, usual_held = peer_groups.medians(np.column_stack((received, held)), group).T
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(usual >= FEWEST, received / usual, np.nan)
            known = memory["share_weight"] >= arrivals.RECENT.total_seconds()
            before = np.fmax(memory["share"], 1.0)
            sure = received - usual * before > SIGMAS * np.sqrt(np.maximum(usual * before, 1.0))
            more = held > IN_FLIGHT * np.maximum(usual_held, 1.0)
            starts: Flags = (share > SHARE * before) & sure & more & known
            holds = memory["skewed"] & (share > SHARE_HOLDS * before)
        memory["skewed"] = starts | holds
        begun = np.where(np.isnan(memory["since"]), window.times[-1] - SPAN.total_seconds(), memory["since"])
        memory["since"] = np.where(memory["skewed"], begun, np.nan)
        unsure = memory["skewed"] | known & (np.nan_to_num(share) > SHARE_HOLDS * before)
        arrivals.follow(memory, "share", share, window.step.total_seconds(), unsure)
        verdicts = []
        for row in np.flatnonzero(memory["skewed"]):
            seconds = SPAN.total_seconds()
            rate, others = float(received[row]) / seconds, float(usual[row]) / seconds
            limit = Interval(None, SHARE * others)
            evidence_items = (
                evidence("engine_requests_per_second", rate, "gets_more_than_peers", limit, rate=rate, peers=others),
                evidence("engine_requests_running", float(held[row]), "holds_more_than_peers", None,
                         held=float(held[row]), peers=float(usual_held[row])),
            )  # fmt: skip
            since = memory["since"][row]
            entity = window.entities[row]
            verdicts.append(
                finding(
                    self.name, entity, "traffic-skew", score=0.85, since=since, now=now, evidence_items=evidence_items
                )
            )
        return verdicts


def _received(window: Window) -> Floats:
    """Requests that arrived at each replica within the span; NaN if its pages do not cover it."""
    http = window.column("engine_http_requests_total")
    answered = np.where(np.isnan(http), window.column("engine_requests_finished_total"), http)
    flight = _flight(window)
    seen = ~np.isnan(answered) & ~np.isnan(flight)
    columns = windows.recent(window, SPAN)
    before = np.take_along_axis(np.where(seen, flight, np.nan), np.maximum(previous_index(seen), 0), axis=1)
    each = np.where(np.isnan(gaps(seen, window.times)), np.nan, answered + flight - before)[:, columns]
    known = (~np.isnan(each)).sum(axis=1)
    result: Floats = np.where(known >= np.maximum(3, each.shape[1] - 1), np.nan_to_num(each).sum(axis=1), np.nan)
    return np.maximum(result, 0.0)


def _flight(window: Window) -> Floats:
    inflight = window.column("engine_inflight_requests")
    at_work = window.column("engine_requests_running") + window.column("engine_requests_waiting")
    return np.where(np.isnan(inflight), at_work, inflight)


def _in_flight(window: Window) -> Floats:
    return newest(window, _flight(window))
