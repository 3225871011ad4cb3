"""Revisions of Deployments, StatefulSets and Argo Rollouts, and the one that a rollback restores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.errors import ActuationError
from remediation.actuators.api_server import ApiServer
from remediation.actuators.kubernetes.change import refused
from remediation.actuators.kubernetes.ownership import Json, annotations_of, labels_of, metadata

REVISION = "deployment.kubernetes.io/revision"
ROLLOUT_REVISION = "rollout.argoproj.io/revision"
_HASHES = ("pod-template-hash", "rollouts-pod-template-hash")  # set by the controllers on their ReplicaSets


@dataclass(frozen=True, slots=True)
class Revision:
    """A ReplicaSet or ControllerRevision with its number and pod template."""

    name: str
    number: int
    template: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Revisions:
    """The revisions of a workload. ``current`` is the newest rolled out, None if its object is missing.

    ``stable`` is the one that an unfinished rollout of Argo Rollouts returns to.
    """

    known: tuple[Revision, ...]
    number: int
    stable: Revision | None = None

    @property
    def current(self) -> Revision | None:
        """The newest revision rolled out."""
        return next((each for each in self.known if each.number == self.number), None)

    def before(self, abandoned: Mapping[str, int]) -> Revision | None:
        """The revision that a rollback restores: the newest earlier one that no rollback has abandoned."""
        earlier = (each for each in self.known if each.number < self.number and abandoned.get(each.name) != each.number)
        return self.stable or max(earlier, key=lambda each: each.number, default=None)

    def still(self, abandoned: Mapping[str, int]) -> dict[str, int]:
        """The abandoned revisions that exist and were not rolled out again."""
        return {each.name: each.number for each in self.known if abandoned.get(each.name) == each.number}


def revisions_of(server: ApiServer, kind: str, workload: Json) -> Revisions:
    """Reads the revisions of a workload. Raises ActuationError, retryable while its controller lags behind."""
    if not is_observed(workload):
        text = f"the controller of {kind} {metadata(workload).get('name')} has not processed its newest change yet"
        raise ActuationError(text, retryable=True)
    return {"Deployment": _of_deployment, "StatefulSet": _of_stateful_set, "Rollout": _of_rollout}[kind](
        server, workload
    )


def is_observed(workload: Json) -> bool:
    """True once the controller has processed the newest change of the workload. Argo Rollouts does not number them."""
    observed = workload.get("status", {}).get("observedGeneration")
    return not isinstance(observed, int) or observed >= metadata(workload).get("generation", 0)


def owned(server: ApiServer, workload: Json, plural: str) -> list[dict[str, Any]]:
    """Returns the pods, ReplicaSets or ControllerRevisions that the workload owns."""
    meta = metadata(workload)
    group = "/api/v1" if plural == "pods" else "/apis/apps/v1"
    listed = server.get(f"{group}/namespaces/{meta['namespace']}/{plural}").get("items", [])
    return [
        item
        for item in listed
        if any(owner.get("uid") == meta["uid"] for owner in metadata(item).get("ownerReferences") or ())
    ]


def _of_deployment(server: ApiServer, workload: Json) -> Revisions:
    sets = owned(server, workload, "replicasets")
    return Revisions(_replica_sets(sets, REVISION), _number(workload, REVISION))


def _of_rollout(server: ApiServer, workload: Json) -> Revisions:
    """An aborted rollout serves the stable ReplicaSet already, but starts the bad revision again when it is retried.

    Restoring the stable template ends it (Argo Rollouts, "kubectl argo rollouts undo").
    """
    reference = workload.get("spec", {}).get("workloadRef")
    if reference:
        text = f"{reference.get('kind')} {reference.get('name')}"
        name = metadata(workload).get("name")
        raise refused(f"Rollout {name} takes its template from {text}", f"roll back {text}")
    sets, status = owned(server, workload, "replicasets"), workload.get("status", {})
    known, stable = _replica_sets(sets, ROLLOUT_REVISION), status.get("stableRS")
    if not stable or stable == status.get("currentPodHash"):
        return Revisions(known, _number(workload, ROLLOUT_REVISION))
    names = {metadata(each)["name"] for each in sets if labels_of(each).get(_HASHES[1]) == stable}
    serving = next((each for each in known if each.name in names), None)
    if serving is None:
        return Revisions((), 0)  # its ReplicaSet is gone: an older one has not served
    return Revisions(known, _number(workload, ROLLOUT_REVISION), serving)


def _of_stateful_set(server: ApiServer, workload: Json) -> Revisions:
    update = workload.get("status", {}).get("updateRevision")
    known = tuple(_controller_revision(each) for each in owned(server, workload, "controllerrevisions"))
    return Revisions(known, next((each.number for each in known if each.name == update), 0))


def _controller_revision(document: Json) -> Revision:
    template = dict(document["data"]["spec"]["template"])
    template.pop("$patch", None)
    return Revision(metadata(document)["name"], int(document["revision"]), template)


def _replica_sets(sets: Iterable[Json], key: str) -> tuple[Revision, ...]:
    return tuple(
        Revision(metadata(each)["name"], _number(each, key), _without_hash(dict(each["spec"]["template"])))
        for each in sets
    )


def _number(document: Json, key: str) -> int:
    return int(annotations_of(document).get(key, 0))


def _without_hash(template: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in template["metadata"].get("labels", {}).items() if key not in _HASHES}
    return {**template, "metadata": {**template["metadata"], "labels": kept}}
