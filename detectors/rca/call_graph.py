"""Root cause in a service call graph: excess is followed along the calls.

The cost of calls is counted in units that add up along a call: seconds of waiting, failed requests, missing requests.
A caller's excess is explained by the excess of its callees in the same steps; the rest is its own. A load balancer or
proxy only shows what it passes on, so it is explained by what lies behind it and needs no special rule.

Misleading for asynchronous calls, for two services that fail in the same steps, and for missing links. A service
without a link can only take half of what the last known one leaves unexplained, so it ranks second at best.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from detectors.rca import call_excess
from detectors.rca.call_excess import Calls, Excess, Symptom
from detectors.rca.call_links import SETTLED, Links, Numbers, alike, connected, followed, reached, weaker
from outrider.model import Floats, NoVerdict, NoVerdictReason

NAME = "callgraph"
OTHER_SYMPTOM = 0.8  # weight of a callee's related symptom, such as slowness behind failures
MIRRORED = 0.9  # a leaf without more excess per call than a traced sibling may be a proxy in front of it
MIRROR_FROM = 0.05  # leaves with less blame are skipped
UNLINKED = 0.5  # a service with the same excess but no link may be the cause, or chance


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Calls between services: entity ``caller[k]`` calls entity ``callee[k]``, numbers from 0 to ``size - 1``.

    Create it with ``CallGraph.of``. Cycles, missing links and entities without calls are allowed.
    """

    size: int
    caller: Numbers
    callee: Numbers

    @staticmethod
    def of(size: int, calls: Iterable[tuple[int, int]]) -> CallGraph:
        """Builds the graph from (caller, callee) pairs; self-calls and duplicates are dropped.

        Raises ValueError for a number outside ``size``.
        """
        pairs = sorted({(caller, callee) for caller, callee in calls if caller != callee})
        ends = np.array(pairs, dtype=np.intp).reshape(-1, 2)
        if ends.size and (ends.min() < 0 or ends.max() >= size):
            raise ValueError(f"a call names entity {ends.max()} of {size}")
        return CallGraph(size, ends[:, 0], ends[:, 1])


@dataclass(frozen=True, slots=True)
class Suspect:
    """One suspected entity. ``confidence`` is its share of the target's excess, 0-1.

    ``excess`` is its own total excess in the unit of the symptom, caused or passed on.
    """

    entity: int
    confidence: float
    excess: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Suspects best first; empty if the target shows no excess ("no fault").

    ``observed`` is the target's excess over the incident, ``usual`` what one of twenty quiet spans of that length
    exceeds: seconds, failed requests or missing requests.
    """

    suspects: tuple[Suspect, ...]
    observed: float
    usual: float


def rank(
    graph: CallGraph,
    normal: Calls,
    incident: Calls,
    target: int,
    symptom: Symptom,
    before: Calls | None = None,
) -> Ranking | NoVerdict:
    """Ranks the possible causes of the symptom of ``target``.

    ``normal`` is a quiet window of the same entities in steps of the same length. ``incident`` are the steps since the
    symptom began, ``before`` those just before it. If the latter are outside the normal range, the normal window is
    outdated and they replace it. NaN is unknown. Failures and waiting propagate from callee to caller, missing
    requests from caller to callee.

    NoVerdict: the target was not measured in the incident, or has no baseline. Raises ValueError if the graph and the
    windows have different numbers of entities.
    """
    windows = [normal, incident] if before is None else [normal, incident, before]
    if any(window.requests.shape[0] != graph.size for window in windows) or not 0 <= target < graph.size:
        raise ValueError(f"the graph, the windows and the target must be about the same {graph.size} entities")
    excess = call_excess.measure(normal, incident, before, target, symptom)
    if isinstance(excess, NoVerdictReason):
        return NoVerdict(NAME, None, excess)
    observed, usual = float(excess.total[target]), float(excess.usual[target])
    if observed <= 0.0:
        return Ranking((), 0.0, usual)
    forward = symptom is not Symptom.REQUESTS
    start, end = (graph.caller, graph.callee) if forward else (graph.callee, graph.caller)
    blame = followed(_ways(start, end, excess, target, graph.size), target, graph.size)
    order = np.lexsort((np.arange(graph.size), -excess.total, -np.round(blame, 9)))
    suspects = (
        Suspect(int(number), float(min(1.0, blame[number])), float(excess.total[number]))
        for number in order
        if blame[number] > SETTLED
    )
    return Ranking(tuple(suspects), observed, usual)


def _ways(start: Numbers, end: Numbers, excess: Excess, target: int, size: int) -> Links:
    """Links by the same symptom, by the related one, from proxies to what is behind them, to unlinked services."""
    same = alike(start, end, excess.own, excess.own, excess.sure)
    related = alike(start, end, excess.own, excess.other, excess.other_sure)
    links = same + weaker(related, OTHER_SYMPTOM, same, size)
    links = links + _mirrors(start, end, excess, followed(links, target, size))
    last = int(np.argmax(followed(links, target, size)))
    aside = np.flatnonzero(~connected(start, end, (target, last), size))
    unlinked = alike(np.full(aside.size, last), aside, excess.own, excess.own, excess.sure)
    return links + weaker(unlinked, UNLINKED, links, size)


def _mirrors(start: Numbers, end: Numbers, excess: Excess, blame: Floats) -> Links:
    """Links from leaves to siblings that call others, by excess per request.

    The services behind a load balancer are unknown if the trace ends at it. A service that itself calls the leaf is
    excluded, since it waits for the leaf.
    """
    leaf = np.bincount(start, minlength=blame.size) == 0
    pairs = [np.zeros((0, 2), dtype=np.intp)]
    for number in np.flatnonzero(leaf & (blame >= MIRROR_FROM)):
        beside = np.unique(end[np.isin(start, start[end == number])])
        beside = beside[~leaf[beside] & ~reached(end, start, int(number), blame.size)[beside]]
        pairs.append(np.stack([np.full(beside.size, number), beside], axis=1))
    ends = np.concatenate(pairs)
    result = alike(ends[:, 0], ends[:, 1], excess.each, excess.each, excess.sure)
    return Links(result.start, result.end, MIRRORED * result.capacity)
