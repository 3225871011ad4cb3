"""Kubernetes API objects of a fleet: pods, nodes, deployments, replica sets, events.

Pure functions of the fleet's state; ``api_view`` handles requests and resource versions.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outrider.model import EntityKind, EntityRef
from simulator.cluster.pod import Phase, Pod
from simulator.fleet import Fleet
from simulator.journal import JournalEntry
from simulator.kubernetes.workloads import Revision, Template, Workload, instant
from simulator.spec.names import pod_uid

REVISION = "deployment.kubernetes.io/revision"
REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
CHANGE = "outrider.dev/change"  # on an Event: code of a change that no Kubernetes object shows
FROM, TO = "outrider.dev/from", "outrider.dev/to"
OURS = "outrider.dev/v1"  # apiVersion of involved objects unknown to Kubernetes, such as a switch
_SPACE = uuid.UUID("2f9f3a52-1d5b-4b51-9a8e-0c5f0a5b7d11")
_OBJECTS = {
    EntityKind.POD: ("v1", "Pod"),
    EntityKind.NODE: ("v1", "Node"),
    EntityKind.SERVICE: ("v1", "Service"),
    EntityKind.WORKLOAD: ("apps/v1", "Deployment"),
}
# fmt: off
_NORMAL = frozenset({
    "Scheduled", "Pulling", "Pulled", "Created", "Started", "Killing", "Starting", "Rebooted", "Changed",
    "NodeReady", "NodeNotReady", "RegisteredNode", "NodeSchedulable", "NodeNotSchedulable", "TaintManagerEviction",
    "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "ScalingReplicaSet", "SuccessfulCreate", "SuccessfulDelete",
    "SuccessfulRescale",
})
# fmt: on
_PHASES = {
    Phase.PENDING: "Pending",
    Phase.PULLING: "Pending",
    Phase.LOADING: "Running",
    Phase.WARMING: "Running",
    Phase.READY: "Running",
    Phase.CRASHED: "Running",
}


def uid(*parts: object) -> str:
    """Returns a deterministic uid of its arguments."""
    return str(uuid.uuid5(_SPACE, "/".join(str(part) for part in parts)))


def labels_of(workload: Workload, template: Template) -> dict[str, str]:
    """Returns the labels of a service's pods."""
    return {"app.kubernetes.io/name": workload.name, "app.kubernetes.io/version": template.version}


def pod_object(fleet: Fleet, pod: Pod, workload: Workload, revision: Revision) -> dict[str, Any]:
    """Returns a ``v1 Pod``."""
    template, cluster = revision.template, fleet.spec.cluster
    name, ready = workload.replica_set(template), bool(fleet.kubelets.pod_ready[pod.slot])
    owner = {
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name,
        "uid": uid(cluster, "rs", name), "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    result: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "namespace": workload.namespace,
            "uid": pod_uid(cluster, pod.name, pod.generation),
            "creationTimestamp": instant(pod.created_at),
            "labels": {**labels_of(workload, template), "pod-template-hash": workload.hash(template)},
            "ownerReferences": [owner],
        },
        "spec": {"containers": [_container(fleet, template, pod)], "restartPolicy": "Always"},
        "status": {"phase": _PHASES.get(pod.phase, "Unknown"), "conditions": _pod_conditions(pod, ready=ready)},
    }
    if pod.node is not None:
        result["spec"]["nodeName"] = fleet.nodes.names[pod.node]
        result["status"] |= {"hostIP": f"10.0.0.{pod.node + 10}", "podIP": f"10.1.{pod.node}.{pod.slot + 1}"}
        result["status"]["startTime"] = instant(pod.created_at)
        result["status"]["containerStatuses"] = [_container_status(pod, template, ready=ready)]
    return result


def _container(fleet: Fleet, template: Template, pod: Pod) -> dict[str, Any]:
    gpus = {_resource(fleet, pod.gpus[0] if pod.gpus else 0): str(pod.service.tensor_parallel)}
    return {
        "name": pod.service.engine_kind,
        "image": template.image,
        "args": list(template.args),
        "ports": [{"containerPort": 8000, "protocol": "TCP"}],
        "resources": {"limits": gpus, "requests": gpus},
    }


def _resource(fleet: Fleet, gpu: int) -> str:
    """Returns the resource name of the device plugin."""
    return "huawei.com/Ascend910" if fleet.gpus.vendor[gpu] == "huawei" else "nvidia.com/gpu"


def _pod_conditions(pod: Pod, *, ready: bool) -> list[dict[str, Any]]:
    placed = pod.node is not None
    scheduled: dict[str, Any] = {"type": "PodScheduled", "status": _truth(placed)}
    if not placed:
        scheduled |= {"reason": "Unschedulable" if pod.unschedulable else "SchedulingGated"}
    at = instant(pod.ready_at if ready and pod.ready_at is not None else pod.crashed_at or pod.created_at)
    unready = f"containers with unready status: [{pod.service.engine_kind}]"
    reason = {} if ready else {"reason": "ContainersNotReady", "message": unready}
    return [
        {**scheduled, "lastTransitionTime": instant(pod.created_at)},
        {"type": "Ready", "status": _truth(ready), "lastTransitionTime": at, **reason},
        {"type": "ContainersReady", "status": _truth(ready), "lastTransitionTime": at, **reason},
    ]


def _container_status(pod: Pod, template: Template, *, ready: bool) -> dict[str, Any]:
    running = {"running": {"startedAt": instant(pod.started_at)}}
    result: dict[str, Any] = {
        "name": pod.service.engine_kind,
        "image": template.image,
        "ready": ready,
        "restartCount": pod.restarts,
        "started": pod.phase in (Phase.LOADING, Phase.WARMING, Phase.READY),
        "state": running,
        "lastState": {},
    }
    if pod.waiting_reason:
        result["state"] = {"waiting": {"reason": pod.waiting_reason}}
    if pod.last_terminated:
        code = 137 if pod.last_terminated == "OOMKilled" else 1
        ended = {"reason": pod.last_terminated, "exitCode": code, "startedAt": instant(pod.started_at)}
        if pod.crashed_at is not None:
            ended["finishedAt"] = instant(pod.crashed_at)
        result["lastState"] = {"terminated": ended}
    return result


def _truth(value: object) -> str:
    return "True" if value else "False"


def node_object(fleet: Fleet, node: int) -> dict[str, Any]:
    """Returns a ``v1 Node``."""
    hosts, name = fleet.nodes, fleet.nodes.names[node]
    mine = np.flatnonzero(fleet.gpus.node == node)
    healthy = int(np.count_nonzero(fleet.pods.healthy[mine]))
    cordoned, ready = bool(fleet.pods.cordoned[node]), bool(hosts.ready[node])
    spec: dict[str, Any] = {"podCIDR": f"10.1.{node}.0/24"}
    if cordoned:
        spec |= {
            "unschedulable": True,
            "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
        }
    pressed = bool(hosts.memory_pressure[node]), bool(hosts.disk_pressure[node])
    conditions = [
        ("MemoryPressure", pressed[0]),
        ("DiskPressure", pressed[1]),
        ("PIDPressure", False),
        ("Ready", ready),
    ]
    resource = _resource(fleet, int(mine[0]) if mine.size else 0)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": uid(fleet.spec.cluster, "node", name),
            "creationTimestamp": instant(float(hosts.boot[node])),
            "labels": {
                "kubernetes.io/hostname": name,
                "node.kubernetes.io/pool": hosts.pool[node],
                "topology.kubernetes.io/rack": hosts.switch[node],
                f"{resource.partition('/')[0]}/gpu.product": _product(fleet, mine),
            },
        },
        "spec": spec,
        "status": {
            "capacity": {resource: str(int(hosts.gpus[node])), "cpu": str(int(hosts.cpus[node]))},
            "allocatable": {resource: str(healthy), "cpu": str(int(hosts.cpus[node]) - 1)},
            "conditions": [{"type": kind, "status": _truth(holds)} for kind, holds in conditions],
            "nodeInfo": {
                "bootID": uid(fleet.spec.cluster, name, f"{hosts.boot[node]:.0f}"),
                "kernelVersion": "6.8.0-87-generic",
                "kubeletVersion": "v1.34.1",
                "osImage": "Ubuntu 24.04.3 LTS",
            },
        },
    }


def _product(fleet: Fleet, gpus: np.ndarray) -> str:
    return fleet.gpus.type_name[int(gpus[0])].replace(" ", "-") if gpus.size else ""


def deployment_object(cluster: str, workload: Workload, wanted: int, pods: list[Pod], updated: int) -> dict[str, Any]:
    """Returns an ``apps/v1 Deployment``: ``wanted`` replicas, existing ``pods``, ``updated`` of the new revision."""
    current, ready = workload.current, sum(pod.ready for pod in pods)
    done = ready >= wanted and updated >= wanted
    progress = {
        "type": "Progressing",
        "status": "True",
        "reason": "NewReplicaSetAvailable" if done else "ReplicaSetUpdated",
        "lastUpdateTime": instant(workload.changed_at),
    }
    available = {"type": "Available", "status": _truth(ready >= max(1, wanted - 1))}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": workload.name,
            "namespace": workload.namespace,
            "uid": uid(cluster, "deployment", workload.name),
            "creationTimestamp": instant(workload.revisions[0].made_at),
            "labels": {"app.kubernetes.io/name": workload.name},
            "annotations": {REVISION: str(current.number)},
        },
        "spec": {**_replica_spec(workload, current), "replicas": wanted, "strategy": {"type": "RollingUpdate"}},
        "status": {
            "replicas": len(pods),
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, wanted - ready),
            "conditions": [available, progress],
        },
    }


def replicaset_object(
    cluster: str, workload: Workload, revision: Revision, wanted: int, pods: list[Pod]
) -> dict[str, Any]:
    """Returns the ``apps/v1 ReplicaSet`` of one revision; ``pods`` are those of this revision."""
    name = workload.replica_set(revision.template)
    notes = {REVISION: str(revision.number)}
    if revision.before:
        notes[REVISION_HISTORY] = ",".join(str(number) for number in revision.before)
    owner = {
        "apiVersion": "apps/v1", "kind": "Deployment", "name": workload.name,
        "uid": uid(cluster, "deployment", workload.name), "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": name,
            "namespace": workload.namespace,
            "uid": uid(cluster, "rs", name),
            "creationTimestamp": instant(revision.made_at),
            "labels": {**labels_of(workload, revision.template), "pod-template-hash": workload.hash(revision.template)},
            "annotations": notes,
            "ownerReferences": [owner],
        },
        "spec": {**_replica_spec(workload, revision), "replicas": wanted},
        "status": {"replicas": len(pods), "readyReplicas": sum(pod.ready for pod in pods)},
    }


def _replica_spec(workload: Workload, revision: Revision) -> dict[str, Any]:
    template = revision.template
    notes = {"kubectl.kubernetes.io/restartedAt": template.restarted_at} if template.restarted_at else {}
    return {
        "selector": {"matchLabels": {"app.kubernetes.io/name": workload.name}},
        "template": {
            "metadata": {"labels": labels_of(workload, template), "annotations": notes},
            "spec": {
                "containers": [{"name": workload.container, "image": template.image, "args": list(template.args)}]
            },
        },
    }


# --- events ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class EventRecord:
    """One Event object; a repeated text about the same object raises its count."""

    number: int
    line: JournalEntry
    first: float
    last: float
    uid: str = ""
    count: int = 1
    notes: Mapping[str, str] = field(default_factory=dict)


def event_object(cluster: str, record: EventRecord) -> dict[str, Any]:
    """Returns a ``v1 Event``."""
    line = record.line
    api, kind = _involved(line.entity, line.attributes)
    namespace = line.entity.namespace or "default"
    involved = {"apiVersion": api, "kind": kind, "name": line.entity.name}
    if line.entity.namespace:
        involved["namespace"] = line.entity.namespace
    if record.uid:
        involved["uid"] = record.uid
    reason = line.code if not record.notes else "Changed"
    component = line.attributes.get("component", "kubelet" if kind in ("Pod", "Node") else "controller-manager")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{line.entity.name.lower()}.{record.number:016x}",
            "namespace": namespace,
            "uid": uid(cluster, "event", record.number),
            "creationTimestamp": instant(record.first),
            **({"annotations": dict(record.notes)} if record.notes else {}),
        },
        "involvedObject": involved,
        "reason": reason,
        "message": line.text,
        "type": line.attributes.get("type", "Normal" if reason in _NORMAL else "Warning"),
        "source": {"component": component},
        "firstTimestamp": instant(record.first),
        "lastTimestamp": instant(record.last),
        "count": record.count,
    }


def _involved(entity: EntityRef, attributes: Mapping[str, str]) -> tuple[str, str]:
    if attributes.get("object") == "HorizontalPodAutoscaler":
        return "autoscaling/v2", "HorizontalPodAutoscaler"
    return _OBJECTS.get(entity.kind, (OURS, entity.kind.value))
