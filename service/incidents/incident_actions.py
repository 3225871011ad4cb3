"""The actions of an incident: those because of it, and every scaling of its services while it lasted.

A surge often ends because the capacity plan has scaled. Such an action is decided because of the plan, often some
seconds before the incident opens, and belongs to its story all the same.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from outrider.model import Action, ActionKind, Incident
from outrider.ports import StateReader
from outrider.topology import Topology
from outrider.wire.cursors import Position
from service.planning import role_pools
from service.planning.concerned import concerns

_ALL = 1_000_000
_LONGEST_LEAD = timedelta(minutes=15)  # from the first alert to the opening of an incident


def of_incident(state: StateReader, incident: Incident, topology: Topology) -> tuple[Action, ...]:
    """Returns the actions of an incident, newest first, refused ones included.

    A scaling counts from the first alert to the end of the incident, whoever ordered it.
    """
    own = state.actions(incident=incident.id, limit=_ALL)
    end, pools = _end(incident), role_pools.with_pools(topology)
    others = state.actions(since=_first_alert(state, incident, end), limit=_ALL, after=end)
    scaled = [
        action
        for action in others
        if action.kind is ActionKind.SCALE
        and action.because != incident.id
        and concerns(incident, action.target, pools)
    ]
    return tuple(sorted([*own, *scaled], key=lambda action: (action.decided_at, action.id), reverse=True))


def _end(incident: Incident) -> Position | None:
    """The position in a list, newest first, after which everything began before the incident ended."""
    return None if incident.resolved_at is None else Position(incident.resolved_at, "")


def _first_alert(state: StateReader, incident: Incident, end: Position | None) -> datetime:
    """The start of the first alert of the incident, or its opening if that is earlier."""
    earliest, known = incident.opened_at - _LONGEST_LEAD, frozenset(incident.alerts)
    alerts = state.alerts(since=earliest, limit=_ALL, after=end)
    starts = (alert.starts_at for alert in alerts if alert.fingerprint in known)
    return min([incident.opened_at, *(start for start in starts if start >= earliest)])
