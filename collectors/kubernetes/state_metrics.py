"""Signals of nodes, pods and workloads from the API, equivalent to kube-state-metrics.

For clusters without kube-state-metrics; only one of the two is active (``service.sources.event_source``). A pod is
read when it changes; a round over unchanged pods is one array.
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
_WAITING = {  # codes of adapters/kube_state_metrics.yaml
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
    """One pod as last read. ``reported`` are the restarts reported so far, None before the first round."""

    version: str
    entity: EntityRef
    values: tuple[float, ...]
    restarts: float
    reported: float | None = None


@dataclass(slots=True)
class StateMetrics:
    """Remembers restart counts between rounds. ``source`` names the batches."""

    source: str
    cluster: str
    rows: dict[str, _Row] = field(default_factory=dict)
    last: datetime | None = None

    def batches(self, objects: Objects, replicas: Replicas, at: datetime) -> tuple[SampleBatch, ...]:
        """One round. Values that an object lacks are ABSENT."""
        seconds = None if self.last is None else (at - self.last).total_seconds()
        self.last = at
        parts = (
            (EntityKind.NODE, _NODE_KEYS, self._nodes(objects, replicas)),
            (EntityKind.POD, _POD_KEYS, self._pods(objects)),
            (EntityKind.WORKLOAD, _WORKLOAD_KEYS, self._workloads(objects)),
            (EntityKind.WORKLOAD, _SCALER_KEYS, self._scalers(objects)),
        )
        return tuple(
            self._batch(kind, keys, rows, at, seconds)
            for kind, keys, entries in parts
            for rows in [list(entries)]
            if rows
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
        cached = objects.by_resource[PODS.name].objects
        for uid in [uid_of_row for uid_of_row in self.rows if uid_of_row not in cached]:
            del self.rows[uid]
        for uid, pod in cached.items():
            row, version = self.rows.get(uid), version_of(pod)
            if row is None or row.version != version or not version:
                values, restarts = _pod(pod)
                entity = EntityRef(self.cluster, EntityKind.POD, *key_of(pod))
                row = self.rows[uid] = _Row(version, entity, values, restarts, row.reported if row else None)
            more = NAN if row.reported is None else max(0.0, row.restarts - row.reported)
            row.reported = row.restarts
            yield row.entity, (*row.values[:_RESTARTS], more, *row.values[_RESTARTS + 1 :])

    def _nodes(self, objects: Objects, replicas: Replicas) -> Iterator[tuple[EntityRef, tuple[float, ...]]]:
        requested: dict[str, float] = {}
        for pod in replicas.pods.values():
            if pod.node and not pod.is_over:
                amount_of_pod = sum(amount for name, amount in pod.accelerators.items() if is_whole(name))
                requested[pod.node] = requested.get(pod.node, 0.0) + amount_of_pod
        for node in objects.all(NODES):
            name, status = key_of(node)[1], mapping(node.get("status"))
            conditions = {
                text(condition.get("type")): text(condition.get("status"))
                for condition in items(status.get("conditions"))
            }
            capacity, room = (accelerators_of(status.get(part)) for part in ("capacity", "allocatable"))
            ready = 1.0 if conditions.get("Ready") == "True" else 0.0
            pressure = 1.0 if any(conditions.get(condition) == "True" for condition in _PRESSURES) else 0.0
            cordoned = 1.0 if mapping(node.get("spec")).get("unschedulable") is True else 0.0
            share = requested.get(name, 0.0) / room if room else NAN
            values = (ready if "Ready" in conditions else NAN, pressure, cordoned, capacity or NAN, share)
            yield EntityRef(self.cluster, EntityKind.NODE, None, name), values

    def _workloads(self, objects: Objects) -> Iterator[tuple[EntityRef, tuple[float, ...]]]:
        for resource, field_ in (
            (DEPLOYMENTS, "availableReplicas"),
            (STATEFUL_SETS, "readyReplicas"),
            (LEADER_WORKER_SETS, "readyReplicas"),
        ):
            for workload in objects.all(resource):
                desired = number(mapping(workload.get("spec")).get("replicas"), 1.0)
                ready = number(mapping(workload.get("status")).get(field_), 0.0)
                ratio = ready / desired if desired > 0 else float("inf")
                yield EntityRef(self.cluster, EntityKind.WORKLOAD, *key_of(workload)), (ratio,)

    def _scalers(self, objects: Objects) -> Iterator[tuple[EntityRef, tuple[float, ...]]]:
        for scaler in objects.all(AUTOSCALERS):
            spec, status = mapping(scaler.get("spec")), mapping(scaler.get("status"))
            current, desired = (number(status.get(part), NAN) for part in ("currentReplicas", "desiredReplicas"))
            most = number(spec.get("maxReplicas"), NAN)
            conditions = {
                text(condition.get("type")): text(condition.get("status"))
                for condition in items(status.get("conditions"))
            }
            broken = NAN if "ScalingActive" not in conditions else float(conditions["ScalingActive"] == "False")
            at_most = float(current >= most) if current == current and most == most else NAN  # noqa: PLR0124 - NaN
            yield EntityRef(self.cluster, EntityKind.WORKLOAD, *key_of(scaler)), (at_most, desired - current, broken)


def _pod(pod: Json) -> tuple[tuple[float, ...], float]:
    """Values of a pod in the order of ``_POD_KEYS``, and its restarts so far."""
    status, meta = mapping(pod.get("status")), mapping(pod.get("metadata"))
    conditions = {text(item.get("type")): item for item in items(status.get("conditions"))}
    containers = items(status.get("containerStatuses"))
    ready = conditions.get("Ready", {})
    is_ready = text(ready.get("status")) == "True"
    waits = [text(mapping(mapping(item.get("state")).get("waiting")).get("reason")) for item in containers]
    waiting = max((_WAITING.get(item, _OTHER_WAITING) for item in waits if item), default=0.0)
    ends = [text(mapping(mapping(item.get("lastState")).get("terminated")).get("reason")) for item in containers]
    scheduled = conditions.get("PodScheduled", {})
    unschedulable = text(scheduled.get("status")) == "False" and text(scheduled.get("reason")) == "Unschedulable"
    restarts = sum(number(item.get("restartCount"), 0.0) for item in containers)
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
    """True for a resource that counts whole accelerators, not slices."""
    return resource in _WHOLE_ACCELERATORS or resource.startswith("huawei.com/")


def accelerators_of(amounts: object) -> float:
    """Whole accelerators among the amounts of a node, 0 for none."""
    return sum(number(value, 0.0) for name, value in mapping(amounts).items() if is_whole(name))


def number(value: object, default: float) -> float:
    """A number or its text; ``default`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return default
    try:
        return float(value)
    except ValueError:
        return default


def unix(value: object) -> float:
    """A time of the API as unix seconds, NaN if invalid."""
    try:
        return parse_rfc3339(value).timestamp() if isinstance(value, str) else NAN
    except (ValueError, OverflowError):
        return NAN
