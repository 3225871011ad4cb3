"""Faults that a drill can produce on a real namespace: target, guards and changes of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from outrider.errors import UsageError
from outrider.model import EntityKind
from outrider.text.i18n import fill
from remediation.actuators.api_server import ApiServer
from service.drills.cluster import changes
from service.drills.cluster.changes import Change, Create, Edit, Evict, Value, pointer

CONSENT = "outrider.io/drill-consent"
BAD_TAG = "outrider-drill-no-such-tag"
LOW_CPU = "100m"
NEVER = frozenset({"kube-system", "kube-public", "kube-node-lease", "default"})
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scene:
    """The objects of a namespace that a drill chooses from. ``choice`` draws the victim."""

    server: ApiServer
    namespace: str
    workload: Json
    pods: tuple[Json, ...]  # ready ones of the workload, by name
    choice: Random
    id: str

    @property
    def victim(self) -> Json:
        """The chosen pod; the same for one seed and set of pods."""
        return self.pods[self.choice.randrange(len(self.pods))]


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault on one target: its entity and the changes that produce it. ``victim`` is the uid of an affected pod."""

    kind: EntityKind
    name: str
    changes: tuple[Change, ...]
    victim: str = ""

    @property
    def of_namespace(self) -> bool:
        """True if the entity has a namespace."""
        return self.kind is not EntityKind.NODE


Injector = Callable[[Scene], Injection]


def open_scene(server: ApiServer, namespace: str, workload: str | None, seed: int, drill_id: str) -> Scene:
    """Reads a namespace. Raises UsageError without consent, or if it has not exactly one suitable workload."""
    _require_consent(server, namespace)
    chosen = _workload(server, namespace, workload)
    selector = chosen["spec"]["selector"].get("matchLabels") or {}
    query = (("labelSelector", ",".join(f"{key}={value}" for key, value in sorted(selector.items()))),)
    listed = server.get(f"/api/v1/namespaces/{namespace}/pods", query=query).get("items", [])
    ready = sorted((pod for pod in listed if is_ready(pod)), key=lambda pod: str(pod["metadata"]["name"]))
    if len(ready) < 2:
        raise UsageError(
            fill(
                "{namespace}/{name} has {n} [ready pod|ready pods]; a drill needs 2",
                namespace=namespace,
                name=chosen["metadata"]["name"],
                n=len(ready),
            ),
            hint="scale it out first: a drill never stops a service",
        )
    return Scene(server, namespace, chosen, tuple(ready), Random(seed), drill_id)  # noqa: S311 - a draw, not a secret


def _require_consent(server: ApiServer, namespace: str) -> None:
    if namespace in NEVER or namespace.startswith("kube-"):
        raise UsageError(f"no drill ever runs in the namespace {namespace}", hint="use a namespace of its own")
    found = server.get(f"/api/v1/namespaces/{namespace}", missing_is_empty=True)
    if not found:
        raise UsageError(f"no namespace is named {namespace!r}", hint="kubectl get namespaces")
    if _labels(found).get(CONSENT) != "true":
        hint = f"kubectl label namespace {namespace} {CONSENT}=true, if its owner agrees"
        raise UsageError(f"the namespace {namespace} has not consented to drills", hint=hint)


def _workload(server: ApiServer, namespace: str, name: str | None) -> Json:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    listed: list[Json] = server.get(path).get("items", [])
    names = sorted(str(item["metadata"]["name"]) for item in listed)
    chosen = [item for item in listed if name in (None, item["metadata"]["name"])]
    if len(chosen) == 1:
        return chosen[0]
    known = f"Deployments in {namespace}: {', '.join(names) or 'none'}"
    raise UsageError(f"no Deployment is named {name!r}" if name else "name the Deployment with --workload", hint=known)


# --- the faults ---------------------------------------------------------------------------------------


def dead_engine(scene: Scene) -> Injection:
    """Gives one pod an image that cannot be pulled: its kubelet stops the container and cannot start it again."""
    return _bad_pod_image(scene, EntityKind.REPLICA)


def crash_looping_pod(scene: Scene) -> Injection:
    """The same, seen from the pod: it waits for an image that does not exist."""
    return _bad_pod_image(scene, EntityKind.POD)


def killed_pod(scene: Scene) -> Injection:
    """Evicts one pod without a grace period. Its replacement starts: no incident should open."""
    _require_budget(scene)
    pod = scene.victim
    name, uid = str(pod["metadata"]["name"]), str(pod["metadata"]["uid"])
    evict = Evict(_pod_path(scene, pod), uid, name, scene.namespace)
    return Injection(EntityKind.REPLICA, name, (evict,), uid)


def bad_rollout(scene: Scene) -> Injection:
    """Rolls out an image that cannot be pulled. The rolling update keeps the old pods that it may not stop."""
    name, spec = str(scene.workload["metadata"]["name"]), scene.workload["spec"]
    update = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    stopped = _amount(update.get("maxUnavailable", "25%"), int(spec.get("replicas", 1)))
    if (spec.get("strategy") or {}).get("type", "RollingUpdate") != "RollingUpdate":
        raise UsageError(f"{name} stops all pods before it starts new ones", hint="use the strategy RollingUpdate")
    _require_budget(scene, taken=stopped)
    value = _image(scene.workload, "spec", "template", "spec", "containers")
    edit = Edit(f"/apis/apps/v1/namespaces/{scene.namespace}/deployments/{name}", (value,))
    template = spec["template"]["metadata"].get("labels") or {}
    service = str(template.get("app.kubernetes.io/name") or template.get("app") or name)
    return Injection(EntityKind.SERVICE, service, (edit,))


def denied_network(scene: Scene) -> Injection:
    """Denies all traffic of one pod by a NetworkPolicy. The network plugin must enforce policies."""
    _require_budget(scene)
    pod = scene.victim
    name = str(pod["metadata"]["name"])
    mark = Value(pointer("metadata", "labels", changes.TARGET), None, scene.id)
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": scene.id, "annotations": {changes.DRILL: scene.id}},
        "spec": {"podSelector": {"matchLabels": {changes.TARGET: scene.id}}, "policyTypes": ["Ingress", "Egress"]},
    }
    collection = f"/apis/networking.k8s.io/v1/namespaces/{scene.namespace}/networkpolicies"
    both = (Create(collection, policy), Edit(_pod_path(scene, pod), (mark,)))
    return Injection(EntityKind.REPLICA, name, both, str(pod["metadata"]["uid"]))


def throttled_cpu(scene: Scene) -> Injection:
    """Lowers the CPU limit of one pod in place (Kubernetes 1.33 and later), without a restart."""
    _require_budget(scene)
    pod = scene.victim
    name, index = str(pod["metadata"]["name"]), _serving_index(pod["spec"]["containers"])
    resources = pod["spec"]["containers"][index].get("resources") or {}
    limit = (resources.get("limits") or {}).get("cpu")
    if limit is None:
        raise UsageError(f"pod {name} has no CPU limit to lower", hint="set resources.limits.cpu in its template")
    at = ("spec", "containers", index, "resources")
    values = [Value(pointer(*at, "limits", "cpu"), limit, LOW_CPU)]
    request = (resources.get("requests") or {}).get("cpu")
    if request is not None:
        values.append(Value(pointer(*at, "requests", "cpu"), request, LOW_CPU))
    edit = Edit(_pod_path(scene, pod), tuple(values), subresource="resize")
    return Injection(EntityKind.POD, name, (edit,), str(pod["metadata"]["uid"]))


def lost_node(scene: Scene) -> Injection:
    """Reports the node of one pod as not ready, again whenever its kubelet reports otherwise.

    The node needs the consent label too, and all its pods, except those of DaemonSets, must be in the namespace.
    """
    name = str(scene.victim["spec"]["nodeName"])
    on_node = [pod for pod in scene.pods if pod["spec"].get("nodeName") == name]
    _require_budget(scene, taken=len(on_node))
    path = f"/api/v1/nodes/{name}"
    node = scene.server.get(path)
    if _labels(node).get(CONSENT) != "true":
        raise UsageError(
            f"the node {name} has not consented to drills", hint=f"kubectl label node {name} {CONSENT}=true"
        )
    strangers = _strangers(scene, name)
    if strangers:
        raise UsageError(f"the node {name} also runs {', '.join(strangers[:3])}", hint="choose a node of its own")
    index, ready = next(
        (index, condition)
        for index, condition in enumerate(node["status"]["conditions"])
        if condition["type"] == "Ready"
    )
    values = tuple(
        Value(pointer("status", "conditions", index, key), ready.get(key), injected)
        for key, injected in (("status", "False"), ("reason", "OutriderDrill"))
    )
    return Injection(EntityKind.NODE, name, (Edit(path, values, subresource="status", holds=True),))


INJECTIONS: Mapping[str, Injector] = {
    "engine-dead": dead_engine,
    "crash-loop": crash_looping_pod,
    "engine-starting": killed_pod,
    "bad-rollout": bad_rollout,
    "network-loss": denied_network,
    "cpu-throttled": throttled_cpu,
    "node-lost": lost_node,
}


def injector_of(fault: str) -> Injector:
    """Returns the injector of a fault. Raises UsageError with the list for another one."""
    found = INJECTIONS.get(fault)
    if found is None:
        hint = f"possible on a cluster: {', '.join(INJECTIONS)}"
        raise UsageError(f"{fault} cannot be produced on a real cluster", hint=hint)
    return found


# --- parts --------------------------------------------------------------------------------------------


def is_ready(pod: Json) -> bool:
    """True for a ready pod that is not being deleted."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")


def _bad_pod_image(scene: Scene, kind: EntityKind) -> Injection:
    _require_budget(scene)
    pod = scene.victim
    edit = Edit(_pod_path(scene, pod), (_image(pod, "spec", "containers"),))
    return Injection(kind, str(pod["metadata"]["name"]), (edit,), str(pod["metadata"]["uid"]))


def _image(document: Json, *path: str) -> Value:
    containers = changes.read(document, pointer(*path))
    index = _serving_index(containers)
    original = str(containers[index]["image"])
    base = original.partition("@")[0]
    repository = base.rpartition(":")[0] if ":" in base.rpartition("/")[2] else base
    return Value(pointer(*path, index, "image"), original, f"{repository}:{BAD_TAG}")


def _serving_index(containers: list[Json]) -> int:
    """Index of the container with an accelerator, else of the first one."""
    for index, container in enumerate(containers):
        limits = (container.get("resources") or {}).get("limits") or {}
        if any(name.endswith(("/gpu", "/npu")) or "/mig-" in name or "Ascend" in name for name in limits):
            return index
    return 0


def _require_budget(scene: Scene, taken: int = 1) -> None:
    """Raises UsageError if a PodDisruptionBudget, or the last ready pod, would be violated by ``taken`` pods."""
    if len(scene.pods) - taken < 1:
        raise UsageError(
            fill("the drill would stop all {n} [ready pod|ready pods]", n=len(scene.pods)),
            hint="scale the workload out first",
        )
    labels = scene.workload["spec"]["template"]["metadata"].get("labels") or {}
    budgets = scene.server.get(f"/apis/policy/v1/namespaces/{scene.namespace}/poddisruptionbudgets").get("items", [])
    for budget in budgets:
        selector = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
        allowed = int((budget.get("status") or {}).get("disruptionsAllowed", 0))
        if selector.items() <= labels.items() and allowed < taken:
            name = budget["metadata"]["name"]
            raise UsageError(
                fill(
                    "PodDisruptionBudget {name} allows {n} [disruption|disruptions]; the drill needs {taken}",
                    name=name,
                    n=allowed,
                    taken=taken,
                ),
                hint="scale the workload out, or wait until all its pods are ready",
            )


def _strangers(scene: Scene, node: str) -> list[str]:
    query = (("fieldSelector", f"spec.nodeName={node}"),)
    pods = scene.server.get("/api/v1/pods", query=query).get("items", [])
    return [
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for pod in pods
        if pod["metadata"]["namespace"] != scene.namespace
        and not any(owner.get("kind") == "DaemonSet" for owner in pod["metadata"].get("ownerReferences") or ())
    ]


def _amount(given: Any, replicas: int) -> int:
    """Pods of a number or a percentage; Kubernetes rounds maxUnavailable down."""
    text = str(given)
    return replicas * int(text[:-1]) // 100 if text.endswith("%") else int(text)


def _pod_path(scene: Scene, pod: Json) -> str:
    return f"/api/v1/namespaces/{scene.namespace}/pods/{pod['metadata']['name']}"


def _labels(document: Json) -> Mapping[str, str]:
    labels: Mapping[str, str] = document["metadata"].get("labels") or {}
    return labels
