"""The topology that an incident is told by: that of its own time, not of the moment somebody reads of it.

A pod that lost its card stands on another node minutes later; in the newest graph nothing joins it with that card.
"""

from __future__ import annotations

from detectors.rca.hypotheses import WINDOW
from outrider.model import Incident
from outrider.ports import StateReader
from outrider.topology import Topology


def of_incident(state: StateReader, incident: Incident, newest: Topology | None = None) -> Topology:
    """The graph at the incident's opening, as correlation saw it: with the edges that had left it shortly before.

    What came into being since, such as a replica that joined a surge, has the edges of the newest graph, which is
    read when it is not given. That graph alone where nothing is kept of the opening. It bears the opening's instant.
    """
    newest = state.topology() if newest is None else newest
    then = state.topology(incident.opened_at)
    if not then.entities:
        return newest
    before = state.topology(incident.opened_at - WINDOW)
    since = newest.entities - then.entities
    edges = [*then.edges, *before.edges, *(edge for edge in newest.edges if not since.isdisjoint(edge))]
    labels = {**before.labels, **{one: newest.labels[one] for one in since & newest.labels.keys()}, **then.labels}
    return Topology.build(edges, then.entities | before.entities | since, labels, incident.opened_at)
