"""Pod families of kube-state-metrics."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache

import numpy as np

from simulator.cluster.pod import Phase, Pod
from simulator.exporters.kube_table import CachedLines, KubeFamily, Lines, one_of, pairs
from simulator.fleet import Fleet
from simulator.spec.names import pod_uid

_PHASES = ("Pending", "Succeeded", "Failed", "Unknown", "Running")
_THREE = ("true", "false", "unknown")
_PENDING = (Phase.PENDING, Phase.PULLING)
_EXIT_CODES = {"OOMKilled": 137.0, "Completed": 0.0}
FIRST_RESTART_SECONDS = 10.0  # before the kubelet's first restart, an ended container is not a crash loop


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod as the API server has it, with related names."""

    pod: Pod
    node: str
    host_ip: str
    resource: str
    cpu_limit: float
    memory_limit_bytes: float
    ready: bool  # Ready condition: readiness probe, false once its node is silent
    looping: bool

    @property
    def container(self) -> str:
        """Its only container, as labels."""
        return pairs(container=self.pod.service.engine_kind)

    @property
    def placed(self) -> bool:
        """True once it is scheduled to a node."""
        return self.pod.node is not None


class KubePods:
    """Writes the lines of all pods."""

    def __init__(self) -> None:
        self._written = CachedLines(_TABLE)

    def update(self, fleet: Fleet) -> bool:
        """Updates all lines to the fleet's state; returns True if any has changed."""
        views: dict[int, PodView] = {}
        keys: list[Hashable] = []
        for pod in fleet.pods.pods:
            if not pod.exists:
                keys.append(None)
                continue
            view = views[pod.slot] = _view(fleet, pod)
            life = (pod.phase, pod.generation, pod.node, pod.restarts, pod.unschedulable, pod.ready_at)
            keys.append((*life, pod.last_terminated, view.ready, view.looping))
        return self._written.update(keys, lambda slot: (_base(fleet, views[slot].pod), views[slot]))

    def text(self) -> str:
        """Returns the text of all families."""
        return self._written.text()


def resource_name(vendor: str) -> str:
    """Returns the sanitized resource name of the device plugin: nvidia.com/gpu, huawei.com/Ascend910."""
    return "huawei_com_Ascend910" if vendor == "huawei" else "nvidia_com_gpu"


@cache
def replica_set(service: str, revision: str) -> str:
    """Returns the name of the ReplicaSet of a revision."""
    digest = hashlib.sha256(f"{service}/{revision}".encode()).digest()
    return f"{service}-" + "".join("bcdfghjklmnpqrstvwxz2456789"[byte % 27] for byte in digest[:10])


def _view(fleet: Fleet, pod: Pod) -> PodView:
    node = pod.node
    device = pod.gpus[0] if pod.gpus else _first_device(fleet, pod)
    return PodView(
        pod,
        "" if node is None else fleet.nodes.names[node],
        "" if node is None else _address("10.0", node + 10),
        resource_name(fleet.gpus.vendor[device]),
        float(fleet.containers.cpu_limit[pod.slot]),
        float(np.rint(fleet.containers.memory_limit_bytes[pod.slot])),
        bool(fleet.kubelets.pod_ready[pod.slot]),
        pod.phase is Phase.CRASHED and fleet.at - (pod.crashed_at or 0.0) >= FIRST_RESTART_SECONDS,
    )


def _first_device(fleet: Fleet, pod: Pod) -> int:
    """Returns a device of the type that the service requires; the fleet's first one if it accepts any."""
    wanted = pod.service.gpu_type
    return fleet.gpus.type_name.index(wanted) if wanted in fleet.gpus.type_name else 0


def _base(fleet: Fleet, pod: Pod) -> str:
    uid = pod_uid(fleet.spec.cluster, pod.name, pod.generation)
    return f'namespace="{pod.service.namespace}",pod="{pod.name}",uid="{uid}"'


def _address(network: str, number: int) -> str:
    return f"{network}.{number // 250}.{number % 250 + 1}"


def _about(view: PodView) -> Lines:
    pod = view.pod
    yield (
        pairs(
            host_ip=view.host_ip,
            pod_ip=_address("10.1", pod.slot) if view.placed else "",
            node=view.node,
            created_by_kind="ReplicaSet",
            created_by_name=replica_set(pod.service.name, pod.revision),
            priority_class="",
            host_network="false",
        ),
        1.0,
    )


def _owner(view: PodView) -> Lines:
    name = replica_set(view.pod.service.name, view.pod.revision)
    yield pairs(owner_kind="ReplicaSet", owner_name=name, owner_is_controller="true"), 1.0


def _container_about(view: PodView) -> Lines:
    kind, pod = view.pod.service.engine_kind, view.pod
    image = f"registry.local/serving/{kind}:{pod.revision}"
    digest = hashlib.sha256(f"{pod.name}/{pod.generation}".encode()).hexdigest()
    yield view.container + pairs(image=image, image_id=image, container_id=f"containerd://{digest}"), 1.0


def _phase(view: PodView) -> Lines:
    return one_of("phase", _PHASES, "Pending" if view.pod.phase in _PENDING else "Running")


def _ready(view: PodView) -> Lines:
    return one_of("condition", _THREE, "true" if view.ready else "false")


def _waiting(view: PodView) -> Lines:
    reason = view.pod.waiting_reason
    if reason and (view.looping or reason != "CrashLoopBackOff"):
        yield view.container + pairs(reason=reason), 1.0


def _ended(view: PodView) -> Lines:
    if view.pod.last_terminated:
        yield view.container + pairs(reason=view.pod.last_terminated), 1.0


def _exit_code(view: PodView) -> Lines:
    if view.pod.last_terminated:
        yield view.container, _EXIT_CODES.get(view.pod.last_terminated, 1.0)


def _requested(view: PodView) -> Lines:
    where = view.container + pairs(node=view.node)
    yield where + pairs(resource=view.resource, unit="integer"), float(view.pod.service.tensor_parallel)
    yield where + pairs(resource="cpu", unit="core"), view.cpu_limit
    yield where + pairs(resource="memory", unit="byte"), view.memory_limit_bytes


def _running(view: PodView) -> bool:
    return view.pod.phase not in (*_PENDING, Phase.CRASHED)


_STABLE, _GAUGE = "[STABLE] ", "gauge"
_TABLE = (
    KubeFamily("kube_pod_info", _GAUGE, f"{_STABLE}Information about pod.", _about),
    KubeFamily("kube_pod_owner", _GAUGE, f"{_STABLE}Information about the Pod's owner.", _owner),
    KubeFamily(
        "kube_pod_created",
        _GAUGE,
        f"{_STABLE}Unix creation timestamp",
        lambda view: [("", math.floor(view.pod.created_at))],
    ),
    KubeFamily(
        "kube_pod_start_time",
        _GAUGE,
        f"{_STABLE}Start time in unix timestamp for a pod.",
        lambda view: [("", math.floor(view.pod.created_at))] if view.placed else [],
    ),
    KubeFamily(
        "kube_pod_status_ready_time",
        _GAUGE,
        "Readiness achieved time in unix timestamp for a pod.",
        lambda view: [] if view.pod.ready_at is None else [("", math.floor(view.pod.ready_at))],
    ),
    KubeFamily("kube_pod_status_phase", _GAUGE, f"{_STABLE}The pods current phase.", _phase),
    KubeFamily(
        "kube_pod_status_ready",
        _GAUGE,
        f"{_STABLE}Describes whether the pod is ready to serve requests.",
        _ready,
    ),
    KubeFamily(
        "kube_pod_status_scheduled",
        _GAUGE,
        f"{_STABLE}Describes the status of the scheduling process for the pod.",
        lambda view: one_of("condition", _THREE, "true" if view.placed else "false"),
    ),
    KubeFamily(
        "kube_pod_status_unschedulable",
        _GAUGE,
        f"{_STABLE}Describes the unschedulable status for the pod.",
        lambda view: [("", 1.0)] if view.pod.phase is Phase.PENDING and view.pod.unschedulable else [],
    ),
    KubeFamily(
        "kube_pod_container_info", _GAUGE, f"{_STABLE}Information about a container in a pod.", _container_about
    ),
    KubeFamily(
        "kube_pod_container_status_ready",
        _GAUGE,
        f"{_STABLE}Describes whether the containers readiness check succeeded.",
        lambda view: [(view.container, float(view.ready))],
    ),
    KubeFamily(
        "kube_pod_container_status_restarts_total",
        "counter",
        f"{_STABLE}The number of container restarts per container.",
        lambda view: [(view.container, float(view.pod.restarts))],
    ),
    KubeFamily(
        "kube_pod_container_status_running",
        _GAUGE,
        f"{_STABLE}Describes whether the container is currently in running state.",
        lambda view: [(view.container, float(_running(view)))],
    ),
    KubeFamily(
        "kube_pod_container_status_waiting_reason",
        _GAUGE,
        f"{_STABLE}Describes the reason the container is currently in waiting state.",
        _waiting,
    ),
    KubeFamily(
        "kube_pod_container_status_last_terminated_reason",
        _GAUGE,
        "Describes the last reason the container was in terminated state.",
        _ended,
    ),
    KubeFamily(
        "kube_pod_container_status_last_terminated_exitcode",
        _GAUGE,
        "Describes the exit code for the last container in terminated state.",
        _exit_code,
    ),
    KubeFamily(
        "kube_pod_container_resource_requests",
        _GAUGE,
        "The number of requested request resource by a container.",
        _requested,
    ),
    KubeFamily(
        "kube_pod_container_resource_limits",
        _GAUGE,
        "The number of requested limit resource by a container.",
        _requested,
    ),
)
