"""Traffic of services as the store has it: traces that a replay takes, and how long their replicas take to start."""

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
    """A service's trace, NaN where a slot is missing, and the start-up time of its replicas with its source."""

    service: EntityRef
    trace: Trace
    startup: timedelta
    startup_source: str


def of_store(
    settings: Settings, metrics: MetricStore, topology: Topology, now: datetime, starts: Sequence[Startup]
) -> list[Traffic]:
    """The history of each service that is planned, as the plan reads it: from its first value, up to ``now``.

    Pools of a service stand in its place, and values that cannot be are missing. A service without a value is left out.
    """
    everyone = topology.of_kind(EntityKind.SERVICE)
    if not everyone:
        return []
    history = metrics.read_windows(
        EntityKind.SERVICE, (LOAD,), now - settings.planner.history, now, HISTORY_STEP, everyone
    )
    topology = role_pools.with_pools(topology)
    history, _ = clean_history(role_pools.with_rows(history, role_pools.planned(topology), topology), LOAD, now)
    wanted, found = set(role_pools.planned(topology)), []
    for row, service in enumerate(history.entities):
        values = history.column(LOAD)[row]
        known = np.flatnonzero(np.isfinite(values) & (history.times < now.timestamp()))
        if service not in wanted or not known.size:
            continue
        part = slice(int(known[0]), int(known[-1]) + 1)
        trace = Trace(service.name, history.times[part], values[part], HISTORY_STEP)
        found.append(
            Traffic(service, trace, *startup_of(settings, service, starts, role_pools.parent_of(service, topology)))
        )
    return found


def startup_of(
    settings: Settings, service: EntityRef, starts: Sequence[Startup], parent: EntityRef | None = None
) -> tuple[timedelta, str]:
    """The p95 of a service's own starts, else what is configured; an hour at most, which is what a replay takes.

    A pool without starts of its own takes those of ``parent``, the service that it is of, as the plan does.
    """
    names = [one.name for one in (service, parent) if one is not None]
    by_name = [[one for one in starts if name in (one.service, one.workload)] for name in names]
    own = next((found for found in by_name if found), [])
    said = [one for name in names for one in settings.services if one.name == name]
    told = [one for one in said if "startup" in one.model_fields_set] or said
    known = told[0] if told else ServiceSettings(name=service.name)
    found = lead_time(own, configured_seconds=known.startup.total_seconds(), settings=settings.planner.scaling.lead)
    return min(timedelta(seconds=found.seconds), MOST_STARTUP), found.source
