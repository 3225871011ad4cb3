"""Kubernetes API view of a fleet: paged lists, changes since a resource version, 410 if too old.

The view reads the fleet on request and finds the changes since the last request, so a fleet without requests costs
nothing. Objects are rendered only when they change.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from outrider.model import EntityKind
from simulator.cluster.pod import Pod
from simulator.fleet import Fleet
from simulator.journal import JournalEntry, JournalSource
from simulator.kubernetes import objects
from simulator.kubernetes.workloads import Workload, changed, first_workload, returned
from simulator.spec.names import pod_uid

MOST_CHANGES = 2_000  # per resource; clients of older versions must list again
EVENT_SECONDS = 3600.0  # --event-ttl of the API server
KINDS = {
    "events": ("v1", "EventList"),
    "nodes": ("v1", "NodeList"),
    "pods": ("v1", "PodList"),
    "deployments": ("apps/v1", "DeploymentList"),
    "replicasets": ("apps/v1", "ReplicaSetList"),
    "statefulsets": ("apps/v1", "StatefulSetList"),
}
_Shape = tuple[object, ...]
_Rendered = tuple[str, _Shape, Callable[[], dict[str, Any]]]


class ExpiredError(Exception):
    """The resource version or continue token is older than the retained history."""


class SelectorError(Exception):
    """An invalid selector, token or version."""


@dataclass(slots=True)
class _Resource:
    """Objects of one resource with recent changes: (version, ADDED | MODIFIED | DELETED, object)."""

    held: dict[str, dict[str, Any]] = field(default_factory=dict)
    shapes: dict[str, _Shape] = field(default_factory=dict)
    changes: deque[tuple[int, str, dict[str, Any]]] = field(default_factory=deque)
    forgotten: int = 0

    def keep(self, version: int, change: str, item: dict[str, Any]) -> None:
        self.changes.append((version, change, item))
        if len(self.changes) > MOST_CHANGES:
            self.forgotten = self.changes.popleft()[0]


@dataclass(frozen=True, slots=True)
class ObjectSelection:
    """Object selection: one namespace, these labels, these values at field paths."""

    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)

    def matches(self, item: Mapping[str, Any]) -> bool:
        """Returns True for a selected object."""
        meta = item["metadata"]
        if self.namespace is not None and meta.get("namespace") != self.namespace:
            return False
        if any(meta.get("labels", {}).get(name) != value for name, value in self.labels.items()):
            return False
        return all(_at(item, path) == value for path, value in self.fields.items())


class KubernetesView:
    """Every resource of one fleet. Like the fleet, not thread-safe."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._version = 1_000
        self._number = 0
        self._resources = {name: _Resource() for name in KINDS}
        self._event_records: dict[tuple[object, ...], objects.EventRecord] = {}
        self._ordered: dict[str, str] = {}
        begun = float(fleet.nodes.boot.max())
        self._workloads = {service.name: first_workload(service, begun) for service in fleet.spec.services}

    def page(self, resource: str, wanted: ObjectSelection, limit: int | None = None, token: str = "") -> dict[str, Any]:
        """Returns a list or one page of it. Raises ExpiredError for an old, SelectorError for an invalid token."""
        self.refresh()
        held = self._resources[resource]
        version, after = (self._version, "") if not token else _opened(token)
        if version < held.forgotten:
            raise ExpiredError
        keys = sorted(key for key, result in held.held.items() if key > after and wanted.matches(result))
        shown = keys if limit is None else keys[:limit]
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if len(shown) < len(keys):
            meta["continue"] = _sealed(version, shown[-1])
            if not (wanted.labels or wanted.fields):
                meta["remainingItemCount"] = len(keys) - len(shown)
        api, kind = KINDS[resource]
        return {"apiVersion": api, "kind": kind, "metadata": meta, "items": [_listed(held.held[key]) for key in shown]}

    def one(self, resource: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Returns an object by its name, None if there is none."""
        self.refresh()
        return self._resources[resource].held.get(f"{namespace}/{name}")

    def changes(
        self, resource: str, after: int, selection: ObjectSelection
    ) -> tuple[int, list[tuple[str, dict[str, Any]]]]:
        """Returns the newest version, and the changes since ``after``. Raises ExpiredError if that is too old.

        ``after`` 0 starts with all existing objects.
        """
        self.refresh()
        held = self._resources[resource]
        if after == 0:
            return self._version, [("ADDED", result) for result in held.held.values() if selection.matches(result)]
        if after < held.forgotten:
            raise ExpiredError
        result = [
            (change, item) for version, change, item in held.changes if version > after and selection.matches(item)
        ]
        return self._version, result

    def forget(self) -> None:
        """Drops the history, like a compaction of etcd: watchers must list again."""
        self.refresh()
        self._version += 1
        for held in self._resources.values():
            held.changes.clear()
            held.forgotten = self._version

    # --- current state --------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Finds the changes in the fleet since the last call."""
        for line in self._fleet.journal.after(self._number):
            self._number = line.number
            self._take(line)
        for name, revision in self._fleet.pods.revisions.items():
            if self._ordered.get(name, revision) != revision:  # possibly without a journal entry
                self._workloads[name] = returned(self._workloads[name], revision, self._fleet.at)
            self._ordered[name] = revision
        old = self._fleet.at - EVENT_SECONDS
        self._event_records = {key: record for key, record in self._event_records.items() if record.last >= old}
        self._update("pods", self._pods())
        self._update("nodes", self._nodes())
        self._update("deployments", self._deployments())
        self._update("replicasets", self._replicasets())
        self._update("events", self._events())

    def _take(self, line: JournalEntry) -> None:
        if line.source is JournalSource.CHANGE:
            workload = self._workloads.get(line.entity.name)
            if line.entity.kind in (EntityKind.SERVICE, EntityKind.WORKLOAD) and workload is not None:
                after = changed(workload, line)
                if after is not None:
                    self._workloads[line.entity.name] = after
                    return
                if line.code == "scale":
                    return  # the deployment's replica count covers it
            notes = {objects.CHANGE: line.code}
            notes |= {objects.FROM: line.attributes["from"]} if "from" in line.attributes else {}
            notes |= {objects.TO: line.attributes["to"]} if "to" in line.attributes else {}
            self._event_records[line.number,] = objects.EventRecord(line.number, line, line.at, line.at, notes=notes)
        elif line.source is JournalSource.KUBERNETES:
            key = (line.entity, line.code, line.text, self._uid(line))
            known = self._event_records.get(key)
            if known is None:
                self._event_records[key] = objects.EventRecord(line.number, line, line.at, line.at, self._uid(line))
            else:
                known.last, known.count = line.at, known.count + 1

    def _uid(self, line: JournalEntry) -> str:
        """Returns the uid of the pod or node of a line; empty for other entities."""
        cluster, entity = self._fleet.spec.cluster, line.entity
        if entity.kind is EntityKind.POD:
            pod = self._fleet.pod_named(entity.name)
            return pod_uid(cluster, entity.name, 0 if pod is None else pod.generation)
        return objects.uid(cluster, "node", entity.name) if entity.kind is EntityKind.NODE else ""

    def _update(self, resource: str, now: Iterable[_Rendered]) -> None:
        held, seen = self._resources[resource], set()
        for key, shape, render in now:
            seen.add(key)
            if held.shapes.get(key) == shape:
                continue
            result = render()
            self._version += 1
            result["metadata"]["resourceVersion"] = str(self._version)
            change = "MODIFIED" if key in held.held else "ADDED"
            before = held.held.get(key)
            if before is not None and before["metadata"]["uid"] != result["metadata"]["uid"]:
                held.keep(self._version, "DELETED", before)
                self._version, change = self._version + 1, "ADDED"
                result["metadata"]["resourceVersion"] = str(self._version)
            held.held[key], held.shapes[key] = result, shape
            held.keep(self._version, change, result)
        for key in [key for key in held.held if key not in seen]:
            self._version += 1
            held.keep(self._version, "DELETED", held.held.pop(key))
            del held.shapes[key]

    def _pods(self) -> Iterator[_Rendered]:
        for pod in self._fleet.pods.pods:
            if not pod.exists:
                continue
            workload = self._workloads[pod.service.name]
            revision = workload.of(pod.revision)
            ready = bool(self._fleet.kubelets.pod_ready[pod.slot])
            life = (pod.generation, pod.phase, pod.node, pod.restarts, pod.unschedulable, pod.started_at)
            shape = (*life, ready, revision)
            yield (
                f"{workload.namespace}/{pod.name}",
                shape,
                partial(objects.pod_object, self._fleet, pod, workload, revision),
            )

    def _nodes(self) -> Iterator[_Rendered]:
        fleet = self._fleet
        hosts = fleet.nodes
        healthy = np.bincount(fleet.gpus.node, fleet.pods.healthy, hosts.size)
        states = (hosts.ready, fleet.pods.cordoned, hosts.disk_pressure, hosts.memory_pressure, hosts.boot, healthy)
        for name, node, *shape in zip(
            hosts.names, range(hosts.size), *(state.tolist() for state in states), strict=True
        ):
            yield f"/{name}", tuple(shape), partial(objects.node_object, fleet, node)

    def _deployments(self) -> Iterator[_Rendered]:
        cluster = self._fleet.spec.cluster
        for workload, pods, wanted in self._each():
            updated = sum(workload.of(pod.revision) is workload.current for pod in pods)
            shape = (workload, wanted, len(pods), sum(pod.ready for pod in pods), updated)
            yield (
                f"{workload.namespace}/{workload.name}",
                shape,
                partial(objects.deployment_object, cluster, workload, wanted, pods, updated),
            )

    def _replicasets(self) -> Iterator[_Rendered]:
        cluster = self._fleet.spec.cluster
        for workload, pods, wanted in self._each():
            for revision in workload.revisions:
                mine = [pod for pod in pods if workload.of(pod.revision) is revision]
                aim = wanted if revision is workload.current else len(mine)
                shape = (revision, aim, len(mine), sum(pod.ready for pod in mine))
                yield (
                    f"{workload.namespace}/{workload.replica_set(revision.template)}",
                    shape,
                    partial(objects.replicaset_object, cluster, workload, revision, aim, mine),
                )

    def _each(self) -> Iterator[tuple[Workload, list[Pod], int]]:
        pods: dict[str, list[Pod]] = {name: [] for name in self._workloads}
        for pod in self._fleet.pods.pods:
            if pod.exists:
                pods[pod.service.name].append(pod)
        for name, workload in self._workloads.items():
            yield workload, pods[name], self._fleet.desired[name]

    def _events(self) -> Iterator[_Rendered]:
        cluster = self._fleet.spec.cluster
        for record in self._event_records.values():
            key = f"{record.line.entity.namespace or 'default'}/{record.line.entity.name.lower()}.{record.number:016x}"
            yield key, (record.count,), partial(objects.event_object, cluster, record)


def _listed(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object without apiVersion and kind, as in a list."""
    return {name: value for name, value in item.items() if name not in ("apiVersion", "kind")}


def _at(item: Mapping[str, Any], path: str) -> str:
    """Returns the value at a field path such as ``involvedObject.kind``; empty if it is missing."""
    value: Any = item
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)


def selector(text: str) -> dict[str, str]:
    """Parses ``a=b,c==d``. Raises SelectorError for any other kind of condition."""
    result = {}
    for part in filter(None, text.split(",")):
        name, sign, value = part.replace("==", "=").partition("=")
        if not sign or name.endswith("!") or "(" in part:
            raise SelectorError(f"unable to parse requirement: {part!r}")
        result[name.strip()] = value.strip()
    return result


def _sealed(version: int, after: str) -> str:
    return base64.urlsafe_b64encode(
        json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": after}).encode()
    ).decode()


def _opened(token: str) -> tuple[int, str]:
    try:
        read = json.loads(base64.urlsafe_b64decode(token))
        return int(read["rv"]), str(read["start"])
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise SelectorError("continue key is not valid") from error
