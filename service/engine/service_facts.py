"""Queues and entries of services in the last minutes, as the degrade ladder and the cluster switch read them."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

from outrider import windows
from outrider.clock import from_unix
from outrider.model import EntityKind, EntityRef, Floats, Window, signal_keys
from remediation.decide.service_entry import ServiceEntry
from remediation.decide.service_load import LoadSample, ServiceLoad
from remediation.procedures.degrade_ladder import MOST_OBSERVED
from service.engine import prompt_length
from service.engine.detect import RecentValues

LOAD = signal_keys("svc_queue_requests", "svc_requests_per_second", "svc_abandoned_total", "svc_rate_limited_ratio")
ENTRY = signal_keys("probe_success", "svc_success_ratio", "svc_requests_per_second")
NEEDS = tuple(dict.fromkeys((*LOAD, *ENTRY, *prompt_length.KEYS)))
_SPAN = timedelta(minutes=10)
_FRESH = timedelta(minutes=1)  # older values do not describe the present queue


def loads(values: RecentValues) -> dict[EntityRef, ServiceLoad]:
    """Returns the queue and throughput of each service with fresh values."""
    window = values.window(EntityKind.SERVICE, LOAD, MOST_OBSERVED + _FRESH)
    if not window.times.size:
        return {}
    waiting, total, left, limited = (windows.believed(window, key) for key in LOAD)
    seconds = _cycle_seconds(window)
    # a gateway rejects requests before they reach the service, whose rate therefore lacks them
    rejected = total * limited / np.maximum(1.0 - limited, 0.01)
    lost = np.minimum(np.nan_to_num(left) / seconds, np.nan_to_num(total))
    served = np.maximum(total - lost, 0.0)
    times = [from_unix(float(at)) for at in window.times]
    prompts = prompt_length.lengths(values)
    result = {}
    for row, service in enumerate(window.entities):
        samples = tuple(
            LoadSample(
                times[slot],
                float(waiting[row, slot]),
                float(served[row, slot]),
                float(lost[row, slot]),
                None if np.isnan(rejected[row, slot]) else float(rejected[row, slot]),
            )
            for slot in np.flatnonzero(~np.isnan(waiting[row]) & ~np.isnan(total[row]))
        )
        if samples and times[-1] - samples[-1].at <= _FRESH:
            result[service] = ServiceLoad(samples, prompts.get(service))
    return result


def entries(values: RecentValues) -> dict[EntityRef, ServiceEntry]:
    """Returns the probes and the gateway's values of each service."""
    window = values.window(EntityKind.SERVICE, ENTRY, _SPAN)
    if not window.times.size:
        return {}
    probes, success, rate = (windows.believed(window, key) for key in ENTRY)
    times = [from_unix(float(at)) for at in window.times]
    return {
        service: ServiceEntry(
            probes=tuple((at, value >= 0.5) for at, value in _known(times, probes[row])),
            success=tuple(_known(times, success[row])),
            viewed=bool(~np.isnan(rate[row, -1])),
            load=None if np.isnan(rate[row]).all() else float(np.nanmax(rate[row])),
        )
        for row, service in enumerate(window.entities)
    }


def _known(times: list[datetime], values: Floats) -> list[tuple[datetime, float]]:
    return [(at, float(value)) for at, value in zip(times, values, strict=True) if not np.isnan(value)]


def _cycle_seconds(window: Window) -> float:
    """Returns the seconds between two cycles, over which a counter's increase is counted."""
    return max(window.step.total_seconds(), 1.0)
