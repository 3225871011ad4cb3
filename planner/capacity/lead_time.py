"""How long a replica takes from its order until it serves: measured on the service's own starts where there are any.

A measured lead time is one real start, the one at the 95th percentile, so that its phases add up to it. What
the operator configured counts until enough starts are known, and stays as it was given: it speaks of a whole start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from outrider.model import LeadPart, LeadTime
from outrider.records.change_log import StartPhase, Startup, lead_time_quantile

LEAST_STARTS = 5
"""Fewer starts than these say little of a 95th percentile: the slowest of them counts if it is slower."""

MARGIN_RATIO = 0.1
NODE_PROVISION_PRIOR = timedelta(minutes=10)
QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class LeadSettings:
    """``margin_ratio`` is added to what was measured, ``node_provision`` where no GPU is free, ``warm_up`` always."""

    margin_ratio: float = MARGIN_RATIO
    node_provision: timedelta = NODE_PROVISION_PRIOR
    warm_up: timedelta = timedelta(0)


def lead_time(
    startups: Sequence[Startup],
    *,
    configured_seconds: float,
    configured_source: str = "configured",
    gpus_free: int | None = None,
    gpus_needed: int = 1,
    settings: LeadSettings | None = None,
) -> LeadTime:
    """The lead time of the next replica of a service.

    ``startups`` are the service's own. ``gpus_free`` None (not known) counts as free. A measured wait for a
    node is taken out of a start where GPUs are free now, and stays in where none is.
    """
    chosen = settings or LeadSettings()
    short = gpus_free is not None and gpus_free < gpus_needed
    known = [one for one in startups if one.lead_time is not None]
    without_node = [_without_node(one) for one in known]
    slowest = lead_time_quantile(without_node, QUANTILE)
    if slowest is None or (len(known) < LEAST_STARTS and slowest.total_seconds() <= configured_seconds):
        parts = [LeadPart("start", configured_seconds, configured_source)]
        source = configured_source
    else:
        measured = next(one for one in without_node if one.lead_time == slowest)
        parts = _phases(measured, slowest.total_seconds())
        parts.append(LeadPart("margin", chosen.margin_ratio * slowest.total_seconds(), "configured"))
        source = "measured"
    if chosen.warm_up:
        parts.append(LeadPart(StartPhase.WARM_UP.value, chosen.warm_up.total_seconds(), "configured"))
    if short:
        parts.insert(0, _node_provision(known, chosen))
    return LeadTime(sum(part.seconds for part in parts), source, len(known), tuple(parts), gpus_free)


def _phases(start: Startup, seconds: float) -> list[LeadPart]:
    """The start's phases up to ready; what they leave unexplained is ``other``."""
    told: dict[str, float] = {}
    for one in start.phases:
        if one.phase is not StartPhase.FIRST_REQUEST and one.seconds > 0:
            told[one.phase.value] = told.get(one.phase.value, 0.0) + one.seconds
    left = seconds - sum(told.values())
    if left < -1.0:  # phases that overlap do not add up: the whole is what was measured
        return [LeadPart("start", seconds, "measured")]
    if left > 0:  # a start may leave some of it unexplained itself
        rest = StartPhase.OTHER.value
        told[rest] = told.pop(rest, 0.0) + left
    return [LeadPart(name, each, "measured") for name, each in told.items()]


def _node_seconds(start: Startup) -> float:
    return sum(one.seconds for one in start.phases if one.phase is StartPhase.NODE_PROVISION)


def _without_node(start: Startup) -> Startup:
    """The same start as it would have been with a node at hand."""
    waited = _node_seconds(start)
    if waited <= 0 or start.ready_at is None:
        return start
    phases = tuple(one for one in start.phases if one.phase is not StartPhase.NODE_PROVISION)
    return Startup(
        id=start.id,
        pod=start.pod,
        began_at=start.began_at + min(timedelta(seconds=waited), start.ready_at - start.began_at),
        phases=phases,
        ready_at=start.ready_at,
    )


def _node_provision(known: Sequence[Startup], settings: LeadSettings) -> LeadPart:
    """The 95th percentile of the waits for a node, the prior where none was seen."""
    seen = sorted(seconds for one in known if (seconds := _node_seconds(one)) > 0)
    if not seen:
        return LeadPart(StartPhase.NODE_PROVISION.value, settings.node_provision.total_seconds(), "prior")
    return LeadPart(StartPhase.NODE_PROVISION.value, seen[min(len(seen) - 1, int(QUANTILE * len(seen)))], "measured")
