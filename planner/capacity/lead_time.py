"""Lead time of a replica from order to serving, measured on the service's own starts if there are enough.

A measured lead time is one real start, the one at the 95th percentile, so that its phases add up to it. Until enough
starts are known the configured value applies unchanged: it is that of a whole start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from outrider.model import LeadPart, LeadTime
from outrider.records.change_log import StartPhase, Startup, lead_time_quantile

LEAST_STARTS = 5
"""With fewer starts a 95th percentile means little: the slowest start counts if it exceeds the configured time."""

MARGIN_RATIO = 0.1
NODE_PROVISION_PRIOR = timedelta(minutes=10)
QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class LeadSettings:
    """``margin_ratio`` is added to measured times, ``node_provision`` if no GPU is free, ``warm_up`` always.

    ``node_provision`` None: no node is added.
    """

    margin_ratio: float = MARGIN_RATIO
    node_provision: timedelta | None = NODE_PROVISION_PRIOR
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
    """Returns the lead time of the next replica of a service.

    ``startups`` are the service's own. ``gpus_free`` None (unknown) counts as free. A measured wait for a node is left
    out if GPUs are free now.
    """
    chosen = settings or LeadSettings()
    short = gpus_free is not None and gpus_free < gpus_needed
    known = [start for start in startups if start.lead_time is not None]
    without_node = [_without_node(start) for start in known]
    slowest = lead_time_quantile(without_node, QUANTILE)
    if slowest is None or (len(known) < LEAST_STARTS and slowest.total_seconds() <= configured_seconds):
        parts = [LeadPart("start", configured_seconds, configured_source)]
        source = configured_source
    else:
        measured = next(start for start in without_node if start.lead_time == slowest)
        parts = _phases(measured, slowest.total_seconds())
        parts.append(LeadPart("margin", chosen.margin_ratio * slowest.total_seconds(), "configured"))
        source = "measured"
    if chosen.warm_up:
        parts.append(LeadPart(StartPhase.WARM_UP.value, chosen.warm_up.total_seconds(), "configured"))
    if short and chosen.node_provision is not None:
        parts.insert(0, _node_provision(known, chosen.node_provision))
    return LeadTime(sum(part.seconds for part in parts), source, len(known), tuple(parts), gpus_free)


def _phases(start: Startup, seconds: float) -> list[LeadPart]:
    """Phases of the start up to ready; the unexplained rest is ``other``."""
    phases: dict[str, float] = {}
    for phase in start.phases:
        if phase.phase is not StartPhase.FIRST_REQUEST and phase.seconds > 0:
            phases[phase.phase.value] = phases.get(phase.phase.value, 0.0) + phase.seconds
    unexplained = seconds - sum(phases.values())
    if unexplained < -1.0:  # overlapping phases do not add up: use the measured total
        return [LeadPart("start", seconds, "measured")]
    if unexplained > 0:  # a start may have an unexplained part of its own
        rest = StartPhase.OTHER.value
        phases[rest] = phases.pop(rest, 0.0) + unexplained
    return [LeadPart(name, length, "measured") for name, length in phases.items()]


def _node_seconds(start: Startup) -> float:
    return sum(phase.seconds for phase in start.phases if phase.phase is StartPhase.NODE_PROVISION)


def _without_node(start: Startup) -> Startup:
    """The same start without its wait for a node."""
    waited = _node_seconds(start)
    if waited <= 0 or start.ready_at is None:
        return start
    phases = tuple(phase for phase in start.phases if phase.phase is not StartPhase.NODE_PROVISION)
    return Startup(
        id=start.id,
        pod=start.pod,
        began_at=start.began_at + min(timedelta(seconds=waited), start.ready_at - start.began_at),
        phases=phases,
        ready_at=start.ready_at,
    )


def _node_provision(known: Sequence[Startup], prior: timedelta) -> LeadPart:
    """The 95th percentile of the waits for a node, or the prior without any."""
    waits = sorted(seconds for start in known if (seconds := _node_seconds(start)) > 0)
    if not waits:
        return LeadPart(StartPhase.NODE_PROVISION.value, prior.total_seconds(), "prior")
    return LeadPart(StartPhase.NODE_PROVISION.value, waits[min(len(waits) - 1, int(QUANTILE * len(waits)))], "measured")
