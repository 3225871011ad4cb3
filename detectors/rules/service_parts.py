"""Counts of a part of each service: the sums over those of its replicas that a rule or SLO covers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from detectors.rules.selection import selects
from outrider.model import CellStatus, EntityKind, EntityRef, Window
from outrider.topology import Topology


def by_service(window: Window, where: Mapping[str, tuple[str, ...]], topology: Topology) -> Window:
    """A window of services from one of replicas: sums of the usable counts of the selected replicas.

    A cell without any usable count has the best status of its replicas. A service without a selected replica is not in
    the window.
    """
    members: dict[EntityRef, list[int]] = {}
    for row, replica in enumerate(window.entities):
        if selects(where, replica, topology):
            for service in topology.holds_up(replica):
                if service.kind is EntityKind.SERVICE:
                    members.setdefault(service, []).append(row)
    services = tuple(sorted(members, key=lambda service: service.key))
    shape = (len(services), window.times.size, len(window.keys))
    values, status = np.full(shape, np.nan), np.full(shape, CellStatus.ABSENT, dtype=np.uint8)
    for place, service in enumerate(services):
        rows = members[service]
        usable = (window.status[rows] <= CellStatus.BELOW_FIRST_BUCKET) & np.isfinite(window.values[rows])
        total = np.where(usable, window.values[rows], 0.0).sum(axis=0)
        values[place] = np.where(usable.any(axis=0), total, np.nan)
        status[place] = window.status[rows].min(axis=0)
    return Window(EntityKind.SERVICE, services, window.times, window.keys, values, status, window.step, window.events)
