"""Groups pods into replicas. Pure.

A pod with accelerators or with an engine's page is a replica or a part of one, whatever page it has. The other pods
of its group, such as a leader without a device, belong to it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collectors.kubernetes.accelerators import CLIQUE
from collectors.kubernetes.api import Json, items, mapping, text
from collectors.kubernetes.engine_args import EngineArgs
from collectors.kubernetes.objects import ENDPOINT_SLICES, Objects, key_of, labels_of, uid_of
from collectors.kubernetes.pods import SERVICE_LABEL, PodFacts, pod_facts, with_service

SERVICE_NAME = "kubernetes.io/service-name"
Key = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class Replica:
    """One TP x PP group with its pods, leader first. ``args`` are the leader's, or of the first pod with any."""

    namespace: str
    name: str
    pods: tuple[PodFacts, ...]
    args: EngineArgs
    own: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    domains: frozenset[str] = frozenset()

    @property
    def gpus(self) -> float:
        """Accelerators of all its pods."""
        return sum(pod.gpus for pod in self.pods)

    @property
    def service(self) -> str:
        """The service it serves."""
        return self.pods[0].service

    @property
    def facts(self) -> dict[str, str]:
        """Labels of the replica."""
        first = self.pods[0]
        labels = {
            "workload": first.workload,
            "owner_kind": first.owner_kind,
            **self.own,
            "image": self.image,
            **first.engine_facts,
            "gpus": f"{self.gpus:g}" if self.gpus else "",
            "pods": str(len(self.pods)),
            "nvlink_domains": ",".join(sorted(domain for domain in self.domains if not domain.startswith("node:"))),
        }
        return {name: value for name, value in labels.items() if value}


@dataclass(slots=True)
class Replicas:
    """The pods of a cluster, rebuilt on change: pods by uid, replicas by (namespace, name)."""

    pods: dict[str, PodFacts] = field(default_factory=dict)
    replicas: dict[Key, Replica] = field(default_factory=dict)


@dataclass(slots=True)
class PodIndex:
    """Facts of every pod, read when it changes: most updates concern its status and change nothing here.

    ``version`` rises when a pod is added, removed, moved or changes its owner.
    """

    service_label: str = SERVICE_LABEL
    pods: dict[str, PodFacts] = field(default_factory=dict)
    version: int = 0

    def take(self, pod: Json) -> PodFacts:
        """Adds or updates a pod."""
        uid, facts = uid_of(pod), pod_facts(pod, self.service_label)
        if self.pods.get(uid) != facts:
            self.pods[uid] = facts
            self.version += 1
        return facts

    def drop(self, uid: str) -> PodFacts | None:
        """Removes a pod; returns its last facts."""
        removed = self.pods.pop(uid, None)
        self.version += removed is not None
        return removed

    def replicas(self, nodes: Iterable[Json], fronts: Mapping[Key, Sequence[str]] | None = None) -> Replicas:
        """Every pod with its service, and the replicas of the unfinished ones.

        ``nodes`` give NVLink domains, ``fronts`` the Services in front of a pod by its key.
        """
        first = {key: names[0] for key, names in (fronts or {}).items() if names}
        grouped = Replicas(
            {uid: with_service(pod, first.get((pod.namespace, pod.name), "")) for uid, pod in self.pods.items()}
        )
        groups: dict[Key, list[PodFacts]] = {}
        for pod in grouped.pods.values():
            if not pod.is_over and (pod.is_engine or pod.is_grouped):
                groups.setdefault((pod.namespace, pod.group), []).append(pod)
        clique_of = {key_of(node)[1]: labels_of(node).get(CLIQUE, "") for node in nodes}
        for (namespace, name), pods in groups.items():
            if any(pod.is_engine for pod in pods):
                pods.sort(key=lambda pod: (not pod.leads, pod.name != pod.group, pod.name))
                grouped.replicas[namespace, name] = _replica(namespace, name, pods, clique_of)
        return grouped


def _replica(namespace: str, name: str, pods: list[PodFacts], clique_of: Mapping[str, str]) -> Replica:
    engine = next((pod for pod in pods if pod.args.is_engine_command), pods[0])
    domains = frozenset(clique_of.get(pod.node) or f"node:{pod.node}" for pod in pods if pod.node and pod.accelerators)
    return Replica(namespace, name, tuple(pods), engine.args, engine.own, engine.image, domains)


def fronts_of(objects: Objects) -> dict[Key, list[str]]:
    """Names of the Services in front of each pod, in the order of their endpoint slices."""
    services_by_pod: dict[Key, list[str]] = {}
    for endpoints in sorted(objects.all(ENDPOINT_SLICES), key=key_of):
        namespace, service = key_of(endpoints)[0], labels_of(endpoints).get(SERVICE_NAME, "")
        for pod in pods_behind(endpoints) if service else ():
            names = services_by_pod.setdefault((namespace, pod), [])
            if service not in names:
                names.append(service)
    return services_by_pod


def pods_behind(endpoints: Json) -> tuple[str, ...]:
    """Names of the pods in an endpoint slice."""
    refs = [mapping(endpoint.get("targetRef")) for endpoint in items(endpoints.get("endpoints"))]
    return tuple(text(ref.get("name")) for ref in refs if ref.get("kind") == "Pod")


def replicas_of_workload(replicas: Iterable[Replica], namespace: str, name: str) -> list[Replica]:
    """The replicas of one workload."""
    return [replica for replica in replicas if replica.namespace == namespace and replica.pods[0].workload == name]
