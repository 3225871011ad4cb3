"""The topology of an incident: that of its opening, not of the time it is read.

A pod that lost its GPU runs on another node minutes later; the newest topology no longer relates it to that GPU.
"""

from __future__ import annotations

from detectors.rca.hypotheses import WINDOW
from outrider.model import Incident
from outrider.ports import StateReader
from outrider.topology import Topology


def of_incident(state: StateReader, incident: Incident, newest: Topology | None = None) -> Topology:
    """Returns the topology at the incident's opening, with the edges removed shortly before, as correlation used it.

    Entities added since, such as a replica of a surge, have the edges of ``newest``, which defaults to the stored one.
    If no topology of the opening is stored, ``newest`` is returned. Its time is that of the opening.
    """
    newest = state.topology() if newest is None else newest
    opening = state.topology(incident.opened_at)
    if not opening.entities:
        return newest
    before = state.topology(incident.opened_at - WINDOW)
    added = newest.entities - opening.entities
    edges = [*opening.edges, *before.edges, *(edge for edge in newest.edges if not added.isdisjoint(edge))]
    labels = {
        **before.labels,
        **{entity: newest.labels[entity] for entity in added & newest.labels.keys()},
        **opening.labels,
    }
    return Topology.build(edges, opening.entities | before.entities | added, labels, incident.opened_at)
