"""Which service in a call graph is at fault: the excess that one of them shows is followed along the calls.

What calls cost is counted in units that add up along a call: seconds of waiting, failed requests,
requests that are missing. A caller's excess is explained by what its callees show too much of in the
same steps; what nobody explains is its own. A load balancer or any other proxy shows what it passes on
and no more, so it explains itself by what lies behind it and needs no rule of its own.

It misleads where calls do not wait for their answer, where two services fail in the same steps and
only one of them hurts, and where a link of the graph is missing: a service that no link leads to can
only take half of what the last known one leaves unexplained, and so comes second at best.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors import callexcess
from detectors.callexcess import Calls, Excess, Symptom
from outrider.model import Floats, NoVerdict, NoVerdictReason

NAME = "callgraph"
PASSED_ON = 0.95  # of what callees explain: a chain of equal excess ends at its last link, not beyond doubt
SHARPNESS = 2.0  # of two callees that could explain, one with half the excess gets a fifth
OTHER_SYMPTOM = 0.8  # slow callees explain failures, and failing ones waiting, less surely than their like
UNLINKED = 0.5  # a service with the same excess and no link to it may be the cause, or chance
_SETTLED = 1e-6
_ROUNDS = 500  # 0.95 ** 500 is far below _SETTLED: cycles end too

Numbers = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Who calls whom: entity ``caller[k]`` calls entity ``callee[k]``, numbers from 0 to ``size - 1``.

    Make it with ``of``. Cycles, missing links and entities without any call are allowed.
    """

    size: int
    caller: Numbers
    callee: Numbers

    @staticmethod
    def of(size: int, calls: Iterable[tuple[int, int]]) -> CallGraph:
        """Build from (caller, callee) pairs; a call of oneself and repetitions are dropped.

        Raises ValueError for a number outside ``size``.
        """
        pairs = sorted({(caller, callee) for caller, callee in calls if caller != callee})
        ends = np.array(pairs, dtype=np.intp).reshape(-1, 2)
        if ends.size and (ends.min() < 0 or ends.max() >= size):
            raise ValueError(f"a call names entity {ends.max()} of {size}")
        return CallGraph(size, ends[:, 0], ends[:, 1])


@dataclass(frozen=True, slots=True)
class Suspect:
    """One entity under suspicion. ``confidence`` is its share of the target's excess, 0-1.

    ``excess`` is what it shows too much of itself, in the unit of the symptom, own or passed on.
    """

    entity: int
    confidence: float
    excess: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Suspects best first; none when the target shows no excess ("no fault").

    ``observed`` is the target's excess over the incident and ``usual`` what it exceeds in one of twenty
    quiet spans of that length: seconds, failed requests or missing requests.
    """

    suspects: tuple[Suspect, ...]
    observed: float
    usual: float


@dataclass(frozen=True, slots=True)
class _Links:
    """Ways on which an excess may have come: ``capacity[k]`` of what ``start[k]`` shows, 0-1, from ``end[k]``."""

    start: Numbers
    end: Numbers
    capacity: Floats

    def explained(self, size: int) -> Floats:
        """The share of each entity's excess that its links explain together, as if by independent chances."""
        left = np.log1p(-np.minimum(self.capacity, 1.0 - 1e-12))
        found: Floats = 1.0 - np.exp(np.bincount(self.start, left, minlength=size))
        return found

    def __add__(self, other: _Links) -> _Links:
        return _Links(
            np.concatenate([self.start, other.start]),
            np.concatenate([self.end, other.end]),
            np.concatenate([self.capacity, other.capacity]),
        )


def rank(
    graph: CallGraph,
    normal: Calls,
    incident: Calls,
    target: int,
    symptom: Symptom,
    before: Calls | None = None,
) -> Ranking | NoVerdict:
    """Rank what may have given ``target`` its symptom.

    ``normal`` is a quiet window of the same entities in steps of the same length, ``incident`` the steps
    since the symptom began, ``before`` those just before it: where they lie outside what is normal, the
    normal window is out of date and they count instead. NaN is a value that is not known. Failures and
    waiting travel from callee to caller, missing requests from caller to callee.

    NoVerdict: the target was not measured in the incident, or has no normal to compare with. Raises
    ValueError when the graph and the windows are about different numbers of entities.
    """
    windows = [normal, incident] if before is None else [normal, incident, before]
    if any(window.requests.shape[0] != graph.size for window in windows) or not 0 <= target < graph.size:
        raise ValueError(f"the graph, the windows and the target must be about the same {graph.size} entities")
    excess = callexcess.measure(normal, incident, before, target, symptom)
    if isinstance(excess, NoVerdictReason):
        return NoVerdict(NAME, None, excess)
    observed, usual = float(excess.total[target]), float(excess.usual[target])
    if observed <= 0.0:
        return Ranking((), 0.0, usual)
    forward = symptom is not Symptom.REQUESTS
    start, end = (graph.caller, graph.callee) if forward else (graph.callee, graph.caller)
    blame = _followed(_ways(start, end, excess, target, graph.size), target, graph.size)
    order = np.lexsort((np.arange(graph.size), -excess.total, -np.round(blame, 9)))
    suspects = (
        Suspect(int(number), float(min(1.0, blame[number])), float(excess.total[number]))
        for number in order
        if blame[number] > _SETTLED
    )
    return Ranking(tuple(suspects), observed, usual)


def _ways(start: Numbers, end: Numbers, excess: Excess, target: int, size: int) -> _Links:
    """Links by the same symptom, then by the related one, then from where those end to what no link leads to."""
    same = _alike(start, end, excess.own, excess.own, excess.sure)
    related = _alike(start, end, excess.own, excess.other, excess.other_sure)
    links = same + _weaker(related, OTHER_SYMPTOM, same, size)
    last = int(np.argmax(_followed(links, target, size)))
    aside = np.flatnonzero(~_joined(start, end, (target, last), size))
    unlinked = _alike(np.full(aside.size, last), aside, excess.own, excess.own, excess.sure)
    return links + _weaker(unlinked, UNLINKED, links, size)


def _alike(start: Numbers, end: Numbers, own: Floats, theirs: Floats, sure: Floats) -> _Links:
    """Links whose capacity is the part of the excess at ``start`` that ``end`` shows in the same steps."""
    mine = own[start]
    common = np.minimum(mine, theirs[end])  # NaN where one of the two is not known
    total = np.where(np.isnan(common), 0.0, mine).sum(axis=1)
    shared = np.nansum(common, axis=1) * sure[end]
    return _Links(start, end, np.divide(shared, total, out=np.zeros(start.size), where=total > 0))


def _weaker(links: _Links, by: float, better: _Links, size: int) -> _Links:
    """Weaker links: ``by`` times what the better ones leave unexplained."""
    left = 1.0 - better.explained(size)[links.start]
    return _Links(links.start, links.end, by * left * links.capacity)


def _followed(links: _Links, target: int, size: int) -> Floats:
    """Follow one unit of blame from the target; each entity keeps what its links do not explain. Sums to 1."""
    weight = links.capacity**SHARPNESS
    weights = np.bincount(links.start, weight, minlength=size)[links.start]
    passed = PASSED_ON * links.explained(size)[links.start]
    share = passed * np.divide(weight, weights, out=np.zeros_like(weight), where=weights > 0)
    kept = 1.0 - np.bincount(links.start, share, minlength=size)
    blame: Floats = np.zeros(size)
    here: Floats = np.zeros(size)
    here[target] = 1.0
    for _ in range(_ROUNDS):
        blame += here * kept
        here = np.bincount(links.end, here[links.start] * share, minlength=size).astype(np.float64)
        if here.sum() < _SETTLED:
            break
    return blame + here


def _joined(start: Numbers, end: Numbers, entities: Iterable[int], size: int) -> Mask:
    """Everything on a way from or to one of the entities."""
    found = np.zeros(size, dtype=np.bool_)
    for entity in entities:
        found |= _reached(start, end, entity, size) | _reached(end, start, entity, size)
    return found


def _reached(start: Numbers, end: Numbers, origin: int, size: int) -> Mask:
    """Everything that links lead to from one entity, itself included."""
    found = np.zeros(size, dtype=np.bool_)
    found[origin] = True
    while True:
        more = end[found[start] & ~found[end]]
        if not more.size:
            return found
        found[more] = True
