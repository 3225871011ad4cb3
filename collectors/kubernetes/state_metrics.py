"""Signals about nodes, pods and workloads straight from the API, as kube-state-metrics would give them.

For clusters without kube-state-metrics: of the two doors only one is ever open (``service.sources.event_source``). A pod
is read when it changes; a round of those that stand still is one array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from collectors.kubernetes.api import Json, items, mapping, text, version_of
from collectors.kubernetes.objects import (
    AUTOSCALERS,
    DEPLOYMENTS,
    LEADER_WORKER_SETS,
    NODES,
    PODS,
    STATEFUL_SETS,
    Objects,
    key_of,
)
from collectors.kubernetes.replicas import Replicas
from outrider.clock import parse_rfc3339
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey

NAN = float("nan")
_PHASES = {"Pending": 0.0, "Running": 1.0, "Succeeded": 2.0, "Failed": 3.0, "Unknown": 4.0}
_WAITING = {  # the codes of adapters/kube_state_metrics.yaml
    "ContainerCreating": 1.0, "PodInitializing": 1.0, "ImagePullBackOff": 2.0, "ErrImagePull": 2.0,
    "CrashLoopBackOff": 3.0, "CreateContainerConfigError": 4.0, "CreateContainerError": 4.0, "RunContainerError": 4.0,
}  # fmt: skip
_OTHER_WAITING = 5.0
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
_WHOLE_ACCELERATORS = ("nvidia.com/gpu", "amd.com/gpu")
_POD_KEYS = tuple(
    map(
        SignalKey,
        ("pod_phase", "pod_ready", "pod_restarts", "pod_waiting_reason", "pod_last_terminated_oom",
         "pod_unschedulable", "pod_startup_seconds"),
    )
)  # fmt: skip
_RESTARTS = _POD_KEYS.index(SignalKey("pod_restarts"))
_NODE_KEYS = tuple(
    map(
        SignalKey,
        ("node_ready", "node_pressure", "node_unschedulable", "node_accel_capacity", "node_accel_allocated_ratio"),
    )
)
_WORKLOAD_KEYS = (SignalKey("workload_available_ratio"),)
_SCALER_KEYS = tuple(map(SignalKey, ("autoscaler_at_max", "autoscaler_gap_replicas", "autoscaler_errors_per_second")))


@dataclass(slots=True)
class _Row:
    """One pod as it was last read. ``told`` are the restarts that were told already, None before the first round."""

    version: str
    entity: EntityRef
    values: tuple[float, ...]
    restarts: float
    told: float | None = None


@dataclass(slots=True)
class KubeSignals:
    """Remembers restart counts between rounds. ``source`` names the batches."""

    source: str
    cluster: str
    rows: dict[str, _Row] = field(default_factory=dict)
    last: datetime | None = None

    def batches(self, objects: Objects, known: Replicas, at: datetime) -> tuple[SampleBatch, ...]:
        """One round. What an object does not say is ABSENT."""
        seconds = None if self.last is None else (at - self.last).total_seconds()
        self.last = at
        parts = (
            (EntityKind.NODE, _NODE_KEYS, self._nodes(objects, known)),
            (EntityKind.POD, _POD_KEYS, self._pods(objects)),
            (EntityKind.WORKLOAD, _WORKLOAD_KEYS, self._workloads(objects)),
            (EntityKind.WORKLOAD, _SCALER_KEYS, self._scalers(objects)),
        )
        return tuple(
            self._batch(kind, keys, rows, at, seconds) for kind, keys, found in parts for rows in [list(found)] if rows
        )

    def _batch(
        self,
        kind: EntityKind,
        keys: tuple[SignalKey, ...],
        rows: Sequence[tuple[EntityRef, tuple[float, ...]]],
        at: datetime,
        seconds: float | None,
    ) -> SampleBatch:
        values = np.array([row for _, row in rows], dtype=np.float64).reshape(len(rows), len(keys))
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        infinite = np.isinf(values)  # 0 of 0 replicas
        status[infinite], values[infinite] = CellStatus.UNDEFINED, NAN
        return SampleBatch(self.source, at, kind, keys, tuple(entity for entity, _ in rows), values, status, seconds)

    def _pods(self, objects: Objects) -> Iterator[tuple[EntityRef, tuple[float, ...]]]:
        held = objects.held[PODS.name].objects
        for uid in [one for one in self.rows if one not in held]:
            del self.rows[uid]
        for uid, pod in held.items():
            row, version = self.rows.get(uid), version_of(pod)
            if row is None or row.version != version or not version:
                values, restarts = _pod(pod)
                entity = EntityRef(self.cluster, EntityKind.POD, *key_of(pod))
                row = self.rows[uid] = _Row(version, entity, values, restarts, row.told if row else None)
            more = NAN if row.told is None else max(0.0, row.restarts - row.told)
            row.told = row.restarts
            yield row.entity, (*row.values[:_RESTARTS], more, *row.values[_RESTARTS + 1 :])

    def _nodes(self, objects: Objects, known: Replicas) -> Iterator[tuple[EntityRef, tuple[float, ...]]]:
        asked: dict[str, float] = {}
        for pod in known.pods.values():
            if pod.node and not pod.is_over:
                wanted = sum(amount for name, amount in pod.accelerators.items() if is_whole(name))
                asked[pod.node] = asked.get(pod.node, 0.0) + wanted
        for node in objects.all(NODES):
            name, status = key_of(node)[1], mapping(node.get("status"))
            conditions = {text(one.get("type")): text(one.get("status")) for one in items(status.get("conditions"))}
            capacity, room = (accelerators_of(status.get(part)) for part in ("capacity", "allocatable"))
            ready = 1.0 if conditions.get("Ready") == "True" else 0.0
            pressure = 1.0 if any(conditions.get(one) == "True" for one in _PRESSURES) else 0.0
            cordoned = 1.0 if mapping(node.get("spec")).get("unschedulable") is True else 0.0
            share = asked.get(name, 0.0) / room if room else NAN
            told = (ready if "Ready" in conditions else NAN, pressure, cordoned, capacity or NAN, share)
            yield EntityRef(self.cluster, EntityKind.NODE, None, name), told

    def _workloads(self, objects: Objects) -> Iterator[tuple[EntityRef, tuple[float, ...]]]:
        for resource, field_ in (
            (DEPLOYMENTS, "availableReplicas"),
            (STATEFUL_SETS, "readyReplicas"),
            (LEADER_WORKER_SETS, "readyReplicas"),
        ):
            for found in objects.all(resource):
                wanted = number(mapping(found.get("spec")).get("replicas"), 1.0)
                there = number(mapping(found.get("status")).get(field_), 0.0)
                ratio = there / wanted if wanted > 0 else float("inf")
                yield EntityRef(self.cluster, EntityKind.WORKLOAD, *key_of(found)), (ratio,)

    def _scalers(self, objects: Objects) -> Iterator[tuple[EntityRef, tuple[float, ...]]]:
        for found in objects.all(AUTOSCALERS):
            spec, status = mapping(found.get("spec")), mapping(found.get("status"))
            current, wanted = (number(status.get(part), NAN) for part in ("currentReplicas", "desiredReplicas"))
            most = number(spec.get("maxReplicas"), NAN)
            conditions = {text(one.get("type")): text(one.get("status")) for one in items(status.get("conditions"))}
            broken = NAN if "ScalingActive" not in conditions else float(conditions["ScalingActive"] == "False")
            at_most = float(current >= most) if current == current and most == most else NAN  # noqa: PLR0124 - NaN
            yield EntityRef(self.cluster, EntityKind.WORKLOAD, *key_of(found)), (at_most, wanted - current, broken)


def _pod(pod: Json) -> tuple[tuple[float, ...], float]:
    """The values of a pod in the order of ``_POD_KEYS``, and its restarts so far."""
    status, meta = mapping(pod.get("status")), mapping(pod.get("metadata"))
    conditions = {text(one.get("type")): one for one in items(status.get("conditions"))}
    containers = items(status.get("containerStatuses"))
    ready = conditions.get("Ready", {})
    is_ready = text(ready.get("status")) == "True"
    waits = [text(mapping(mapping(one.get("state")).get("waiting")).get("reason")) for one in containers]
    waiting = max((_WAITING.get(one, _OTHER_WAITING) for one in waits if one), default=0.0)
    ends = [text(mapping(mapping(one.get("lastState")).get("terminated")).get("reason")) for one in containers]
    scheduled = conditions.get("PodScheduled", {})
    unschedulable = text(scheduled.get("status")) == "False" and text(scheduled.get("reason")) == "Unschedulable"
    restarts = sum(number(one.get("restartCount"), 0.0) for one in containers)
    began, done = unix(meta.get("creationTimestamp")), unix(ready.get("lastTransitionTime"))
    values = (
        _PHASES.get(text(status.get("phase")), _PHASES["Pending"]),
        float(is_ready) if ready else NAN,
        NAN,
        waiting,
        float("OOMKilled" in ends),
        float(unschedulable),
        done - began if is_ready else NAN,
    )
    return values, restarts


def is_whole(resource: str) -> bool:
    """True for a resource that counts whole accelerators, not slices of one."""
    return resource in _WHOLE_ACCELERATORS or resource.startswith("huawei.com/")


def accelerators_of(amounts: object) -> float:
    """The whole accelerators among the amounts of a node, 0 for none."""
    return sum(number(value, 0.0) for name, value in mapping(amounts).items() if is_whole(name))


def number(value: object, default: float) -> float:
    """A number or a text of one; ``default`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return default
    try:
        return float(value)
    except ValueError:
        return default


def unix(value: object) -> float:
    """A time of the API as unix seconds, NaN when it is none."""
    try:
        return parse_rfc3339(value).timestamp() if isinstance(value, str) else NAN
    except (ValueError, OverflowError):
        return NAN
