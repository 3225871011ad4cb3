"""The page of cAdvisor in the kubelet of one node: a row per container, with totals of pods and node.

Measurements have a timestamp of the node's clock; limits and start times do not.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from outrider.model import Floats
from simulator.cluster.pod import Phase, Pod
from simulator.exporters.text import Family, families, go_number, header, labels, stamp
from simulator.fleet import Fleet
from simulator.hardware.containers import PERIOD_SECONDS
from simulator.spec.names import pod_uid

_PERIOD_MICROSECONDS = 1e6 * PERIOD_SECONDS
_RSS_RATIO, _CACHE_RATIO = 0.82, 0.3  # shares of the working set: anonymous memory, active and inactive files
KERNEL = "6.8.0-87-generic"
LINGERS_SECONDS = 20.0  # the kubelet lists an ended container for about this long
_WITHOUT = (Phase.ABSENT, Phase.PENDING, Phase.PULLING)
_VERSION = (
    "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version "
    "& cadvisor revision."
)


class CadvisorPages:
    """Writes the page of any node. All pages at one time share one table of the containers' numbers."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._numbers: dict[str, list[float]] = {}
        self._of_node: list[list[Pod]] = []

    def page(self, fleet: Fleet, node: int) -> bytes:
        """Returns the page of a node."""
        if self._at != fleet.at:
            self._numbers = {name: values.tolist() for name, values in numbers(fleet).items()}
            self._of_node = _running(fleet)
            self._at = fleet.at
        pods, end = self._of_node[node], stamp(fleet.at + float(fleet.nodes.clock_offset[node]))
        parts = {family.name: self._family(fleet, family, pods, end) for family in families("cadvisor.yaml")}
        parts |= _facts(fleet, node)
        return "".join(parts[name] for name in sorted(parts)).encode()

    def _family(self, fleet: Fleet, family: Family, pods: list[Pod], end: str) -> str:
        values, extra = self._numbers[family.value], ("cpu",) if "cpu" in family.needs else ()
        ending = "" if "plain" in family.needs else end
        shown = [values[pod.slot] for pod in pods]
        parts = [family.header, f"{family.name}{_slice_row(*extra)} {go_number(float(sum(shown)))}{ending}\n"]
        for pod, value in zip(pods, shown, strict=True):
            text = f" {go_number(value)}{ending}\n"
            rows = _rows(fleet.spec.cluster, pod.name, pod.service.namespace, pod.generation, *_image(pod), *extra)
            parts += [f"{family.name}{row}{text}" for row in rows]
        return "".join(parts)


def numbers(fleet: Fleet) -> dict[str, Floats]:
    """Returns all container values, each of shape (slots,), by the names of the table."""
    containers, size = fleet.containers, fleet.bank.size
    working = np.rint(np.minimum(containers.working_set_bytes, containers.memory_limit_bytes))
    return {
        "periods": np.floor(containers.periods),
        "throttled_periods": np.floor(containers.throttled_periods),
        "throttled_seconds": np.round(containers.throttled_seconds, 9),
        "cpu_seconds": np.round(containers.cpu_seconds, 9),
        "now": np.full(size, np.floor(fleet.at)),
        "cache_bytes": np.rint(_CACHE_RATIO * working),
        "limit_hits": containers.oom_kills,
        "rss_bytes": np.rint(_RSS_RATIO * working),
        "usage_bytes": np.rint((_RSS_RATIO + _CACHE_RATIO) * working),
        "working_set_bytes": working,
        "oom_events": containers.oom_kills,
        "cpu_period": np.full(size, _PERIOD_MICROSECONDS),
        "cpu_quota": np.rint(containers.cpu_limit * _PERIOD_MICROSECONDS),
        "limit_bytes": np.rint(containers.memory_limit_bytes),
        "started": np.array([np.floor(pod.started_at) for pod in fleet.pods.pods]),
    }


def _running(fleet: Fleet) -> list[list[Pod]]:
    """Returns the pods of each node with a container, or with one that ended very recently."""
    result: list[list[Pod]] = [[] for _ in fleet.nodes.names]
    for pod in fleet.pods.pods:
        if pod.node is None or pod.phase in _WITHOUT:
            continue
        if pod.phase is Phase.CRASHED and fleet.at - (pod.crashed_at or 0.0) > LINGERS_SECONDS:
            continue
        result[pod.node].append(pod)
    return result


def _facts(fleet: Fleet, node: int) -> dict[str, str]:
    """Returns the families about cAdvisor and its node, by name."""
    hosts = fleet.nodes
    version = {
        "cadvisorRevision": "",
        "cadvisorVersion": "",
        "dockerVersion": "",
        "kernelVersion": KERNEL,
        "osVersion": "Ubuntu 24.04.3 LTS",
    }
    fixed = {
        "cadvisor_version_info": (_VERSION, labels(version), 1.0),
        "container_scrape_error": ("1 if there was an error while getting container metrics, 0 otherwise", "", 0.0),
        "machine_cpu_cores": ("Number of CPU cores on the machine.", "", float(hosts.cpus[node])),
        "machine_memory_bytes": ("Amount of memory installed on the machine.", "", float(hosts.memory_bytes[node])),
    }
    return {
        name: f"{header(name, 'gauge', text)}{name}{pairs} {go_number(value)}\n"
        for name, (text, pairs, value) in fixed.items()
    }


def _slice_row(cpu: str = "") -> str:
    """Returns the row of the cgroup of all pods, without pod and container."""
    return _row("", "", "/kubepods.slice", "", "", "", cpu)


def _image(pod: Pod) -> tuple[str, str]:
    """Returns the name of the container and its image."""
    kind = pod.service.engine_kind
    return kind, f"registry.local/serving/{kind}:{pod.revision}"


@lru_cache(maxsize=20_000)
def _rows(
    cluster: str, pod: str, namespace: str, generation: int, container: str, image: str, cpu: str = ""
) -> tuple[str, str]:
    """Returns the labels of a pod's cgroup and of its container's. A new pod has new labels."""
    uid = pod_uid(cluster, pod, generation)
    own = f"/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice"
    digest = hashlib.sha256(uid.encode()).hexdigest()
    whole = _row("", pod, own, "", "", namespace, cpu)
    return whole, _row(container, pod, f"{own}/cri-containerd-{digest}.scope", image, digest, namespace, cpu)


def _row(container: str, pod: str, path: str, image: str, name: str, namespace: str, cpu: str) -> str:
    pairs = {"container": container, "id": path, "image": image, "name": name, "namespace": namespace, "pod": pod}
    if cpu:
        pairs = {"container": container, "cpu": "total", **pairs}
    return labels(pairs)
