"""Stored traffic of services: traces for replays, and the start-up times of their replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from outrider.model import EntityKind, EntityRef
from outrider.ports import MetricStore
from outrider.records.change_log import Startup
from outrider.topology import Topology
from planner.capacity.lead_time import lead_time
from planner.capacity.plan import LOAD
from planner.forecast.history import clean_history
from planner.replay.backtest import Trace
from planner.replay.score import MOST_STARTUP
from service.config.service_settings import ServiceSettings
from service.config.settings import Settings
from service.planning import role_pools
from service.planning.planning import HISTORY_STEP


@dataclass(frozen=True, slots=True)
class Traffic:
    """A service's trace (NaN for a missing slot) and the start-up time of its replicas with its source."""

    service: EntityRef
    trace: Trace
    startup: timedelta
    startup_source: str


def of_store(
    settings: Settings, metrics: MetricStore, topology: Topology, now: datetime, starts: Sequence[Startup]
) -> list[Traffic]:
    """Returns the history of each planned service as the plan reads it, from its first value to ``now``.

    Pools replace their service. Impossible values are missing. Services without a value are left out.
    """
    all_services = topology.of_kind(EntityKind.SERVICE)
    if not all_services:
        return []
    history = metrics.read_windows(
        EntityKind.SERVICE, (LOAD,), now - settings.planner.history, now, HISTORY_STEP, all_services
    )
    topology = role_pools.with_pools(topology)
    history, _ = clean_history(role_pools.with_rows(history, role_pools.planned(topology), topology), LOAD, now)
    planned, traffic = set(role_pools.planned(topology)), []
    for row, service in enumerate(history.entities):
        values = history.column(LOAD)[row]
        known = np.flatnonzero(np.isfinite(values) & (history.times < now.timestamp()))
        if service not in planned or not known.size:
            continue
        part = slice(int(known[0]), int(known[-1]) + 1)
        trace = Trace(service.name, history.times[part], values[part], HISTORY_STEP)
        traffic.append(
            Traffic(service, trace, *startup_of(settings, service, starts, role_pools.parent_of(service, topology)))
        )
    return traffic


def startup_of(
    settings: Settings, service: EntityRef, starts: Sequence[Startup], parent: EntityRef | None = None
) -> tuple[timedelta, str]:
    """Returns the p95 of a service's start-ups, else the configured time; one hour at most, the limit of a replay.

    A pool without its own start-ups uses those of ``parent``, its service, as the plan does.
    """
    names = [entity.name for entity in (service, parent) if entity is not None]
    by_name = [[start for start in starts if name in (start.service, start.workload)] for name in names]
    own = next((matching for matching in by_name if matching), [])
    entries = [entry for name in names for entry in settings.services if entry.name == name]
    candidates = [entry for entry in entries if "startup" in entry.model_fields_set] or entries
    setting = candidates[0] if candidates else ServiceSettings(name=service.name)
    lead = lead_time(own, configured_seconds=setting.startup.total_seconds(), settings=settings.planner.scaling.lead)
    return min(timedelta(seconds=lead.seconds), MOST_STARTUP), lead.source
