"""The page of kube-state-metrics 2.x: nodes, pods and deployments."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.fleet import Fleet
from simulator.names import pod_uid
from simulator.pages.text import go_number, labels
from simulator.pods import Phase, Pod

PHASES = ("Pending", "Succeeded", "Failed", "Unknown", "Running")
REVISION = "6c9f7d8b5d"
_PENDING = (Phase.PENDING, Phase.PULLING)
_DEPLOYMENT = {
    "spec_replicas": "[STABLE] Number of desired pods for a deployment.",
    "status_replicas": "[STABLE] The number of replicas per deployment.",
    "status_replicas_ready": "[STABLE] The number of ready replicas per deployment.",
    "status_replicas_available": "[STABLE] The number of available replicas per deployment.",
    "status_replicas_unavailable": "[STABLE] The number of unavailable replicas per deployment.",
    "status_replicas_updated": "[STABLE] The number of updated replicas per deployment.",
}
Line = tuple[dict[str, str], float]


class KubeStatePage:
    """Writes the page; one page serves every request of an instant that brought no change."""

    def __init__(self) -> None:
        self._state: tuple[object, ...] = ()
        self._page = b""

    def page(self, fleet: Fleet) -> bytes:
        """The page."""
        pods = fleet.pods
        state = (
            tuple((pod.phase, pod.generation, pod.node, pod.restarts, pod.unschedulable) for pod in pods.pods),
            tuple(pods.cordoned),
            tuple(pods.healthy),
            tuple(fleet.nodes.ready),
            tuple(fleet.desired.values()),
        )
        if state != self._state:
            families = [*_nodes(fleet), *_pods(fleet), *_deployments(fleet)]
            self._page = "".join(_family(*family) for family in families).encode()
            self._state = state
        return self._page


Family = tuple[str, str, str, list[Line]]


def _family(name: str, kind: str, text: str, lines: list[Line]) -> str:
    body = "".join(f"{name}{labels(pairs)} {go_number(float(value))}\n" for pairs, value in lines)
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{body}"


def _nodes(fleet: Fleet) -> Iterator[Family]:
    hosts = fleet.nodes
    conditions: list[Line] = []
    for node, name in enumerate(hosts.names):
        for condition in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure"):
            truth = "true" if condition == "Ready" and hosts.ready[node] else "false"
            conditions += [
                ({"node": name, "condition": condition, "status": status}, float(status == truth))
                for status in ("true", "false", "unknown")
            ]
    healthy = np.bincount(fleet.gpus.node, fleet.pods.healthy, hosts.size)
    capacity: list[Line] = []
    allocatable: list[Line] = []
    for node, name in enumerate(hosts.names):
        for resource, unit, whole, left in (
            ("cpu", "core", hosts.cpus[node], hosts.cpus[node] - 1),
            ("memory", "byte", hosts.memory_bytes[node], hosts.memory_bytes[node] * 0.97),
            ("nvidia_com_gpu", "integer", hosts.gpus[node], healthy[node]),
            ("pods", "integer", 110, 110),
        ):
            pairs = {"node": name, "resource": resource, "unit": unit}
            capacity.append((pairs, float(whole)))
            allocatable.append((pairs, float(left)))
    yield (
        "kube_node_info",
        "gauge",
        "[STABLE] Information about a cluster node.",
        [
            (
                {
                    "node": name,
                    "kernel_version": "6.8.0-87-generic",
                    "os_image": "Ubuntu 24.04.3 LTS",
                    "container_runtime_version": "containerd://2.1.4",
                    "kubelet_version": "v1.34.1",
                    "internal_ip": f"10.0.0.{node + 10}",
                },
                1.0,
            )
            for node, name in enumerate(hosts.names)
        ],
    )
    yield "kube_node_status_condition", "gauge", "[STABLE] The condition of a cluster node.", conditions
    yield (
        "kube_node_spec_unschedulable",
        "gauge",
        "[STABLE] Whether a node can schedule new pods.",
        [({"node": name}, float(fleet.pods.cordoned[node])) for node, name in enumerate(hosts.names)],
    )
    yield (
        "kube_node_status_capacity",
        "gauge",
        "[STABLE] The total amount of resources available for a node.",
        capacity,
    )
    yield (
        "kube_node_status_allocatable",
        "gauge",
        "[STABLE] The amount of resources allocatable for pods (after reserving some for system daemons).",
        allocatable,
    )


def _pods(fleet: Fleet) -> Iterator[Family]:
    pods = [pod for pod in fleet.pods.pods if pod.exists]
    base = [
        {
            "namespace": pod.service.namespace,
            "pod": pod.name,
            "uid": pod_uid(fleet.spec.cluster, pod.name, pod.generation),
        }
        for pod in pods
    ]
    each = list(zip(pods, base, strict=True))
    container = [(pod, {**pairs, "container": "vllm"}) for pod, pairs in each]

    def node(pod: Pod) -> str:
        return "" if pod.node is None else fleet.nodes.names[pod.node]

    owner = {"created_by_kind": "ReplicaSet"}
    yield (
        "kube_pod_info",
        "gauge",
        "[STABLE] Information about pod.",
        [
            (
                {
                    **pairs,
                    "host_ip": "" if pod.node is None else f"10.0.0.{pod.node + 10}",
                    "pod_ip": "" if pod.node is None else f"10.1.{pod.node}.{pod.slot + 1}",
                    "node": node(pod),
                    **owner,
                    "created_by_name": f"{pod.service.name}-{REVISION}",
                    "priority_class": "",
                    "host_network": "false",
                },
                1.0,
            )
            for pod, pairs in each
        ],
    )
    yield (
        "kube_pod_owner",
        "gauge",
        "[STABLE] Information about the Pod's owner.",
        [
            (
                {
                    **pairs,
                    "owner_kind": "ReplicaSet",
                    "owner_name": f"{pod.service.name}-{REVISION}",
                    "owner_is_controller": "true",
                },
                1.0,
            )
            for pod, pairs in each
        ],
    )
    yield "kube_pod_created", "gauge", "[STABLE] Unix creation timestamp", [(p, pod.created_at) for pod, p in each]
    yield (
        "kube_pod_status_ready_time",
        "gauge",
        "Readiness achieved time in unix timestamp for a pod.",
        [(p, pod.ready_at) for pod, p in each if pod.ready_at is not None],
    )
    yield (
        "kube_pod_status_phase",
        "gauge",
        "[STABLE] The pods current phase.",
        [
            ({**p, "phase": phase}, float(phase == ("Pending" if pod.phase in _PENDING else "Running")))
            for pod, p in each
            for phase in PHASES
        ],
    )
    yield (
        "kube_pod_status_ready",
        "gauge",
        "[STABLE] Describes whether the pod is ready to serve requests.",
        [
            ({**p, "condition": condition}, float(condition == ("true" if pod.ready else "false")))
            for pod, p in each
            for condition in ("true", "false", "unknown")
        ],
    )
    yield (
        "kube_pod_status_unschedulable",
        "gauge",
        "[STABLE] Describes the unschedulable status for the pod.",
        [(p, 1.0) for pod, p in each if pod.phase is Phase.PENDING and pod.unschedulable],
    )
    yield (
        "kube_pod_container_status_restarts_total",
        "counter",
        "[STABLE] The number of container restarts per container.",
        [(p, float(pod.restarts)) for pod, p in container],
    )
    yield (
        "kube_pod_container_status_waiting_reason",
        "gauge",
        "[STABLE] Describes the reason the container is currently in waiting state.",
        [
            ({**p, "reason": "CrashLoopBackOff" if pod.phase is Phase.CRASHED else "ContainerCreating"}, 1.0)
            for pod, p in container
            if pod.phase in (Phase.CRASHED, Phase.PULLING)
        ],
    )
    yield (
        "kube_pod_container_status_last_terminated_reason",
        "gauge",
        "Describes the last reason the container was in terminated state.",
        [({**p, "reason": "Error"}, 1.0) for pod, p in container if pod.restarts],
    )
    yield (
        "kube_pod_container_resource_requests",
        "gauge",
        "The number of requested request resource by a container.",
        [
            (
                {**p, "node": node(pod), "resource": "nvidia_com_gpu", "unit": "integer"},
                float(pod.service.tensor_parallel),
            )
            for pod, p in container
        ],
    )


def _deployments(fleet: Fleet) -> Iterator[Family]:
    counts: dict[str, list[Line]] = {name: [] for name in _DEPLOYMENT}
    for service in fleet.spec.services:
        slots = [pod for pod in fleet.pods.of_service(service.name) if pod.exists]
        pairs = {"namespace": service.namespace, "deployment": service.name}
        wanted, ready = fleet.desired[service.name], sum(pod.ready for pod in slots)
        for name, count in zip(
            _DEPLOYMENT, (wanted, len(slots), ready, ready, max(0, wanted - ready), len(slots)), strict=True
        ):
            counts[name].append((pairs, float(count)))
    for name, text in _DEPLOYMENT.items():
        yield f"kube_deployment_{name}", "gauge", text, counts[name]
