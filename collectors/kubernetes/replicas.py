"""Which pods make one replica. Pure.

A pod that holds accelerators or says that its page is an engine's is a replica or a part of one, whatever page it
has or lacks; those of its group that hold none, such as a leader without a device, are parts of it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collectors.kubernetes.accelerators import CLIQUE
from collectors.kubernetes.api import Json, items, mapping, text
from collectors.kubernetes.engine_args import EngineArgs
from collectors.kubernetes.objects import ENDPOINT_SLICES, NODES, PODS, Objects, key_of, labels_of, uid_of
from collectors.kubernetes.pods import SERVICE_LABEL, PodFacts, pod_facts, served

SERVICE_NAME = "kubernetes.io/service-name"
Key = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class Replica:
    """One TP x PP group with its pods, leader first. ``args`` are the leader's, or of the first that has any."""

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
        found = {
            "workload": first.workload,
            "owner_kind": first.owner_kind,
            **self.own,
            "image": self.image,
            **first.said,
            "gpus": f"{self.gpus:g}" if self.gpus else "",
            "pods": str(len(self.pods)),
            "nvlink_domains": ",".join(sorted(one for one in self.domains if not one.startswith("node:"))),
        }
        return {name: value for name, value in found.items() if value}


@dataclass(slots=True)
class Replicas:
    """The pods of a cluster, read once a change: pods by uid, replicas by (namespace, name)."""

    pods: dict[str, PodFacts] = field(default_factory=dict)
    replicas: dict[Key, Replica] = field(default_factory=dict)


@dataclass(slots=True)
class PodIndex:
    """What counts of every pod, read when it changes: most updates are of its status and change nothing here.

    ``version`` rises when a pod comes, goes, moves or becomes another's.
    """

    service_label: str = SERVICE_LABEL
    pods: dict[str, PodFacts] = field(default_factory=dict)
    version: int = 0

    def take(self, pod: Json) -> PodFacts:
        """A pod as it is now."""
        uid, facts = uid_of(pod), pod_facts(pod, self.service_label)
        if self.pods.get(uid) != facts:
            self.pods[uid] = facts
            self.version += 1
        return facts

    def drop(self, uid: str) -> PodFacts | None:
        """A pod is no more; returns what it was."""
        gone = self.pods.pop(uid, None)
        self.version += gone is not None
        return gone

    def replicas(self, nodes: Iterable[Json], fronts: Mapping[Key, Sequence[str]] | None = None) -> Replicas:
        """Every pod with its service, and the replicas of those that are not over.

        ``nodes`` tell NVLink domains, ``fronts`` the Services in front of a pod by its key.
        """
        first = {key: names[0] for key, names in (fronts or {}).items() if names}
        found = Replicas({uid: served(pod, first.get((pod.namespace, pod.name), "")) for uid, pod in self.pods.items()})
        groups: dict[Key, list[PodFacts]] = {}
        for pod in found.pods.values():
            if not pod.is_over and (pod.is_engine or pod.is_grouped):
                groups.setdefault((pod.namespace, pod.group), []).append(pod)
        clique_of = {key_of(node)[1]: labels_of(node).get(CLIQUE, "") for node in nodes}
        for (namespace, name), pods in groups.items():
            if any(pod.is_engine for pod in pods):
                pods.sort(key=lambda pod: (not pod.leads, pod.name != pod.group, pod.name))
                found.replicas[namespace, name] = _replica(namespace, name, pods, clique_of)
        return found


def _replica(namespace: str, name: str, pods: list[PodFacts], clique_of: Mapping[str, str]) -> Replica:
    speaks = next((pod for pod in pods if pod.args.speaks), pods[0])
    domains = frozenset(clique_of.get(pod.node) or f"node:{pod.node}" for pod in pods if pod.node and pod.accelerators)
    return Replica(namespace, name, tuple(pods), speaks.args, speaks.own, speaks.image, domains)


def replicas_of(objects: Objects, service_label: str = SERVICE_LABEL) -> Replicas:
    """Every pod's facts and the replicas, read anew."""
    index = PodIndex(service_label)
    for pod in objects.all(PODS):
        index.take(pod)
    return index.replicas(objects.all(NODES), fronts_of(objects))


def fronts_of(objects: Objects) -> dict[Key, list[str]]:
    """The names of the Services in front of each pod, in the order of their endpoint slices."""
    found: dict[Key, list[str]] = {}
    for one in sorted(objects.all(ENDPOINT_SLICES), key=key_of):
        namespace, service = key_of(one)[0], labels_of(one).get(SERVICE_NAME, "")
        for pod in pods_behind(one) if service else ():
            names = found.setdefault((namespace, pod), [])
            if service not in names:
                names.append(service)
    return found


def pods_behind(endpoints: Json) -> tuple[str, ...]:
    """The names of the pods that an endpoint slice lists."""
    refs = [mapping(one.get("targetRef")) for one in items(endpoints.get("endpoints"))]
    return tuple(text(ref.get("name")) for ref in refs if ref.get("kind") == "Pod")


def of_workload(replicas: Iterable[Replica], namespace: str, name: str) -> list[Replica]:
    """The replicas of one workload."""
    return [one for one in replicas if one.namespace == namespace and one.pods[0].workload == name]
