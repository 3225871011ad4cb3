"""The topology of the last quarter of an hour: what a thing rests on now, and what it rested on until lately.

A pod that its node lost is placed elsewhere within minutes, and from then on nothing says that it ever was on that
node; what it shows while it starts is still that node's doing. So an edge that went away goes on for as long as a
cause may explain what comes after it, for correlation and for nothing else.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from detectors.rca.hypotheses import WINDOW
from outrider.topology import Edge, Topology


class RecentTopology:
    """Remembers edges that went away. One of it belongs to one cycle; it is given each cycle's topology in turn."""

    def __init__(self, span: timedelta = WINDOW) -> None:
        self._span = span
        self._last: Topology | None = None
        self._edges: frozenset[Edge] = frozenset()
        self._left: dict[Edge, datetime] = {}
        self._widened: Topology | None = None

    def widened(self, topology: Topology, now: datetime) -> Topology:
        """The topology with the edges that left it within the span; itself while there are none."""
        kept = {edge: at for edge, at in self._left.items() if now - at < self._span}
        stands_still = topology.shares_graph(self._last) and len(kept) == len(self._left)
        if not topology.shares_graph(self._last):
            edges = frozenset(topology.edges)
            kept |= dict.fromkeys(self._edges - edges, now)
            kept = {edge: at for edge, at in kept.items() if edge not in edges}
            self._last, self._edges = topology, edges
        self._left = kept
        if not kept:
            self._widened = None
            return topology
        if self._widened is None or not stands_still:
            every = (*topology.edges, *sorted(kept, key=_order))
            self._widened = Topology.build(every, topology.entities, topology.labels, topology.at)
        return self._widened


def _order(edge: Edge) -> tuple[str, str]:
    return edge[0].key, edge[1].key
