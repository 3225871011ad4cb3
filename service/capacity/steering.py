"""Traffic weight proposals: reads replicas and a route, returns weights and ``shift_traffic`` actions."""

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
from planner.traffic.weight_changes import SteeringRules, WeightProposal
from planner.traffic.weights import ReplicaLoad
from service.capacity import purchasing
from service.config import input_files

SESSION = "steer"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas of a service: all of them, their pods, and the loads of those that report.

    ``arriving`` is the load of all in tokens per second.
    """

    service: EntityRef
    replicas: tuple[EntityRef, ...]
    pods: Mapping[str, str]
    loads: tuple[ReplicaLoad, ...]
    arriving: float


def of_store(
    metrics: MetricStore, topology: Topology, service: EntityRef, calibrations: Sequence[Calibration]
) -> Fleet:
    """Returns the fleet by the newest values; replicas without values stay in it."""
    loads, arriving = purchasing.replicas_of_store(metrics, topology, service, calibrations)
    replicas = topology.below(service, EntityKind.REPLICA)
    pods = {replica.name: topology.label(replica, "pod") or replica.name for replica in replicas}
    return Fleet(service, replicas, pods, tuple(loads), arriving)


def of_file(path: Path, service: EntityRef, arriving: float | None, load: float) -> Fleet:
    """Reads replicas from a JSON file, named as their pods; ``load`` is the default share of their speed that arrives.

    Raises UsageError.
    """
    loads = tuple(purchasing.replicas_of_file(path))
    replicas = tuple(EntityRef(service.cluster, EntityKind.REPLICA, service.namespace, item.name) for item in loads)
    default = load * sum(item.tokens_per_second for item in loads)
    return Fleet(
        service, replicas, {item.name: item.name for item in loads}, loads, default if arriving is None else arriving
    )


def route_of(path: Path) -> dict[str, Any]:
    """Reads a route as kubectl prints it, YAML or JSON. Raises UsageError with the line."""
    hint = "give the output of kubectl get -o yaml for one route"
    try:
        route = yaml.safe_load(input_files.text_of(path, hint))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UsageError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}", hint=hint) from error
    if not isinstance(route, dict):
        raise UsageError(f"{path} is not an HTTPRoute or VirtualService", hint=hint)
    return route


@dataclass(frozen=True, slots=True)
class Proposal:
    """Weights by backend, the replica of each backend, and the replicas without a backend."""

    steering: WeightProposal
    replica_of: Mapping[str, EntityRef]
    unrouted: tuple[str, ...]


def propose(fleet: Fleet, rules: SteeringRules, now: Mapping[str, float] | None) -> Proposal:
    """Proposes weights for the backends of a route, or for every replica without a route. Raises UsageError."""
    names = routes.backends([replica.name for replica in fleet.replicas])
    listed = list(now) if now is not None else list(names.values())
    backend_of = {}
    for replica in fleet.replicas:  # a backend may have the replica's name, a name derived from it, or the pod's name
        candidates = (replica.name, names[replica.name], fleet.pods[replica.name])
        backend_of[replica.name] = next((name for name in candidates if name in listed), None)
    loads = [_renamed(load, name) for load in fleet.loads if (name := backend_of[load.name]) is not None]
    if now is not None and not any(backend_of.values()):
        replicas, backends = ", ".join(backend_of) or "none", ", ".join(listed)
        raise UsageError(
            f"no backend is a replica of {fleet.service.name}", hint=f"backends: {backends}; replicas: {replicas}"
        )
    steering = weight_changes.propose(listed, loads, fleet.arriving, now, rules)
    replica_of = {name: replica for replica in fleet.replicas if (name := backend_of[replica.name]) is not None}
    unrouted = tuple(replica.name for replica in fleet.replicas if backend_of[replica.name] is None)
    return Proposal(steering, replica_of, unrouted)


def _renamed(load: ReplicaLoad, name: str) -> ReplicaLoad:
    return ReplicaLoad(name, load.queued_tokens, load.tokens_per_second, load.kv_ratio, load.cached_ratio)


def actions(proposal: Proposal, now: datetime) -> list[dict[str, Any]]:
    """Returns the proposal as ``shift_traffic`` dry runs that need approval; equal weights have equal ids."""
    if not proposal.steering.proposed:
        return []
    documents = []
    for name, ratio in weight_changes.shift_ratios(proposal.steering.weights).items():
        target = proposal.replica_of.get(name)
        if target is None:
            continue  # not a backend of this service: its share stays
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
        documents.append(serialization.action(action))
    return documents
