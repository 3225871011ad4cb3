"""What a proposal of weights is made from and becomes: replicas of the store or a file, a route, traffic actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from outrider.documents import serialization
from outrider.errors import UsageError
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Calibration,
    DecisionReason,
    EntityKind,
    EntityRef,
    Verdict,
)
from outrider.ports import MetricStore
from outrider.topology import Topology
from planner.traffic import routes, weight_changes
from planner.traffic.weight_changes import Steering, SteeringRules
from planner.traffic.weights import ReplicaLoad
from service.capacity import purchasing
from service.config import input_files

SESSION = "steer"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas of a service: all of them, their pods, and what is known of those that tell.

    ``arriving`` are tokens a second for all.
    """

    service: EntityRef
    replicas: tuple[EntityRef, ...]
    pods: Mapping[str, str]
    loads: tuple[ReplicaLoad, ...]
    arriving: float


def of_store(
    metrics: MetricStore, topology: Topology, service: EntityRef, calibrations: Sequence[Calibration]
) -> Fleet:
    """As of the newest values; a replica that tells nothing stays one of the fleet."""
    loads, arriving = purchasing.replicas_of_store(metrics, topology, service, calibrations)
    replicas = topology.below(service, EntityKind.REPLICA)
    pods = {one.name: topology.label(one, "pod") or one.name for one in replicas}
    return Fleet(service, replicas, pods, tuple(loads), arriving)


def of_file(path: Path, service: EntityRef, arriving: float | None, load: float) -> Fleet:
    """Replicas of a JSON file, named as their pods; ``load`` of their speed arrives unless told. Raises UsageError."""
    loads = tuple(purchasing.replicas_of_file(path))
    replicas = tuple(EntityRef(service.cluster, EntityKind.REPLICA, service.namespace, one.name) for one in loads)
    usual = load * sum(one.tokens_per_second for one in loads)
    return Fleet(
        service, replicas, {one.name: one.name for one in loads}, loads, usual if arriving is None else arriving
    )


def route_of(path: Path) -> dict[str, Any]:
    """A route as kubectl prints it, YAML or JSON. Raises UsageError naming the line."""
    hint = "give what kubectl get -o yaml prints of one route"
    try:
        found = yaml.safe_load(input_files.text_of(path, hint))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UsageError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}", hint=hint) from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is no HTTPRoute or VirtualService", hint=hint)
    return found


@dataclass(frozen=True, slots=True)
class Proposal:
    """Weights by backend, the replicas that no backend stands for, and the replica of each backend that has one."""

    found: Steering
    replica_of: Mapping[str, EntityRef]
    unrouted: tuple[str, ...]


def propose(fleet: Fleet, rules: SteeringRules, now: Mapping[str, float] | None) -> Proposal:
    """Weights for the backends of a route, or for every replica where there is none yet. Raises UsageError."""
    names = routes.backends([one.name for one in fleet.replicas])
    listed = list(now) if now is not None else list(names.values())
    backend_of = {}
    for one in fleet.replicas:  # a route may name a backend as the replica, as a name made of it, or as its pod
        candidates = (one.name, names[one.name], fleet.pods[one.name])
        backend_of[one.name] = next((name for name in candidates if name in listed), None)
    loads = [_renamed(load, name) for load in fleet.loads if (name := backend_of[load.name]) is not None]
    if now is not None and not any(backend_of.values()):
        known, given = ", ".join(backend_of) or "none", ", ".join(listed)
        raise UsageError(
            f"no backend is a replica of {fleet.service.name}", hint=f"backends: {given}; replicas: {known}"
        )
    found = weight_changes.propose(listed, loads, fleet.arriving, now, rules)
    replica_of = {name: one for one in fleet.replicas if (name := backend_of[one.name]) is not None}
    unrouted = tuple(one.name for one in fleet.replicas if backend_of[one.name] is None)
    return Proposal(found, replica_of, unrouted)


def _renamed(load: ReplicaLoad, name: str) -> ReplicaLoad:
    return ReplicaLoad(name, load.queued_tokens, load.tokens_per_second, load.kv_ratio, load.cached_ratio)


def actions(proposal: Proposal, now: datetime) -> list[dict[str, Any]]:
    """The proposal as ``shift_traffic`` actions: dry runs that ask, the same ids for the same weights."""
    if not proposal.found.proposed:
        return []
    made = []
    for name, ratio in weight_changes.shift_ratios(proposal.found.weights).items():
        target = proposal.replica_of.get(name)
        if target is None:
            continue  # another's backend: its share stays
        action = Action(
            id=f"steer:{target.key}:{round(ratio, 4):g}",
            session=SESSION,
            kind=ActionKind.SHIFT_TRAFFIC,
            target=target,
            params={"weight": round(ratio, 4)},
            because="plan",
            dry_run=True,
            decision=Verdict.ASK,
            reason=DecisionReason.NEEDS_APPROVAL,
            status=ActionStatus.PROPOSED,
            decided_at=now,
        )
        made.append(serialization.action(action))
    return made
