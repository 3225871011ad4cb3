"""The Kubernetes API as a source of targets and of topology: pods, nodes, and the endpoints of services.

Each resource is listed once and then followed. One that may not be read or does not answer stands as it was
and is told; the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from collectors.discovery.found import Found, Seen
from collectors.discovery.kube_gpus import node_facts
from collectors.discovery.kube_pods import SCRAPE, PodFacts, ended_at, page_of, pod_of
from collectors.kube_api import Feed, Json, KubeApi, mapping, text, texts
from collectors.kube_api import Seen as Change
from collectors.kube_api import items as objects_of
from collectors.kube_replicas import SERVICE_LABEL
from collectors.registry import ADAPTERS, adapter
from outrider.clock import Clock, SystemClock
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef
from outrider.topology import Edge

_SERVICE_NAME = "kubernetes.io/service-name"
_ALIVE = "status.phase!=Succeeded,status.phase!=Failed"
_MOST_FAULTS = 20
REMEMBERED = timedelta(minutes=15)  # as long as other entities that leave: collectors.lost
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Gone:
    """A pod that went; ``until`` by the API's own clock where it told, ``at`` on our monotonic one."""

    pod: PodFacts
    until: str
    at: float


class KubernetesSource:
    """One cluster. Pods that ask to be scraped, or that ``label_selector`` chooses, are targets."""

    def __init__(
        self,
        name: str,
        api: KubeApi,
        cluster: str,
        *,
        namespaces: Sequence[str] = (),
        label_selector: str = "",
        service_label: str = SERVICE_LABEL,
        every: timedelta = timedelta(seconds=15),
        clock: Clock | None = None,
    ) -> None:
        """``api`` is this one's alone. Without ``label_selector`` annotations alone choose.

        ``clock`` says how long ago a pod went.
        """
        self.name, self.every = name, every
        self._api, self._cluster, self._service_label = api, cluster, service_label
        self._selected = bool(label_selector)
        alive = {"fieldSelector": _ALIVE} | ({"labelSelector": label_selector} if label_selector else {})
        places = [f"/namespaces/{one}" for one in namespaces] or [""]
        self._feeds: dict[str, list[Feed]] = {
            "nodes": [Feed(api, "/api/v1/nodes")],
            "pods": [Feed(api, f"/api/v1{place}/pods", alive) for place in places],
            "services": [Feed(api, f"/api/v1{place}/services") for place in places],
            "slices": [Feed(api, f"/apis/discovery.k8s.io/v1{place}/endpointslices") for place in places],
        }
        self._pods: dict[_Key, PodFacts] = {}
        self._nodes: dict[_Key, dict[str, str]] = {}
        self._services: dict[_Key, Mapping[str, str]] = {}  # annotations
        self._slices: dict[_Key, tuple[str, tuple[str, ...]]] = {}  # service, names of pods
        self._of_feed: dict[str, set[_Key]] = {}
        self._gone: dict[_Key, _Gone] = {}
        self._clock = clock or SystemClock()
        self._seen, self._told = Seen(), [""]

    async def read(self) -> Seen:
        """Everything there is. Raises CollectError as long as pods were never read."""
        feeds = [(kind, feed) for kind, of_kind in self._feeds.items() for feed in of_kind]
        results = await asyncio.gather(*(feed.read() for _, feed in feeds), return_exceptions=True)
        faults: list[CollectError] = []
        news: list[tuple[str, str, list[Change]]] = []
        for (kind, feed), result in zip(feeds, results, strict=True):
            if isinstance(result, CollectError):
                faults.append(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                news.append((kind, feed.path, result))
        of_pods = [fault for fault, (kind, _) in zip(results, feeds, strict=True) if kind == "pods"]
        await asyncio.to_thread(self._take_all, news, faults)  # ten thousand pods must not hold the loop
        if all(isinstance(one, CollectError) for one in of_pods):
            fault = of_pods[0]
            assert isinstance(fault, CollectError)
            raise fault  # whoever asked keeps what it has
        return self._seen

    def _take_all(self, news: Sequence[tuple[str, str, Sequence[Change]]], faults: Sequence[CollectError]) -> None:
        changed = [self._take(kind, path, changes) for kind, path, changes in news]
        late = self._clock.monotonic() - REMEMBERED.total_seconds()
        over = [key for key, one in self._gone.items() if one.at < late]
        for key in over:
            del self._gone[key]
        if any(changed) or over or _said(faults) != self._told:
            self._seen, self._told = self._whole(faults), _said(faults)

    def _take(self, kind: str, path: str, news: Sequence[Change]) -> bool:
        """Take changes in; True when they matter. A new list takes the place of all that its feed told before."""
        kept: dict[_Key, object] = getattr(self, f"_{kind}")
        known = self._of_feed.setdefault(path, set())
        before = set(known) if news and news[0].what == "LISTED" else set()
        listed: set[_Key] = set()
        matters = False
        for change in news:
            meta = mapping(change.found.get("metadata"))
            key = (text(meta.get("namespace")), text(meta.get("name")))
            now = None if change.what == "DELETED" else self._kept(kind, change.found)
            listed.add(key)
            if now == kept.get(key):
                continue
            matters = True
            if now is None:
                self._leave(key, kept.pop(key), change.found)
                known.discard(key)
            else:
                kept[key] = now
                known.add(key)
        for key in before - listed:
            self._leave(key, kept.pop(key), {})
            known.discard(key)
            matters = True
        return matters

    def _leave(self, key: _Key, what: object, last: Json) -> None:
        """A pod that goes is remembered for a while: what is said of it may come later than its end."""
        if isinstance(what, PodFacts):
            self._gone[key] = _Gone(what, ended_at(last), self._clock.monotonic())

    def _kept(self, kind: str, found: Json) -> object:
        """What is kept of an object; None of one that does not count."""
        meta = mapping(found.get("metadata"))
        if kind == "pods":
            return pod_of(found, self._cluster, self._service_label)
        if kind == "nodes":
            return node_facts(found)
        if kind == "services":
            return texts(meta.get("annotations"))
        owner = texts(meta.get("labels")).get(_SERVICE_NAME, "")
        refs = [mapping(one.get("targetRef")) for one in objects_of(found.get("endpoints"))]
        return owner, tuple(text(ref.get("name")) for ref in refs if ref.get("kind") == "Pod")

    # --- what it comes to -------------------------------------------------------------------------

    def _whole(self, faults: Sequence[CollectError]) -> Seen:
        problems: list[CollectError] = list(faults)
        pages: dict[str, Found] = {}
        fronts = self._fronts()
        for key, pod in self._pods.items():
            for asked in self._asked(key, pod, fronts):
                page = page_of(pod, service=next(iter(fronts.get(key, ())), ""), notes=asked)
                if isinstance(page, str):
                    problems.append(CollectError(f"{self.name}: {page}", reason=CollectReason.OTHER))
                elif pod.leads or _is_beside(page):
                    pages.setdefault(page.address, self._completed(page, pod))
        labels = dict(self._facts(fronts))
        return Seen(tuple(pages.values()), tuple(self._edges(fronts)), labels, tuple(problems[:_MOST_FAULTS]))

    def _fronts(self) -> dict[_Key, list[str]]:
        """The names of the services in front of each pod."""
        found: dict[_Key, list[str]] = {}
        for (namespace, _), (service, pods) in sorted(self._slices.items()):
            for pod in pods:
                names = found.setdefault((namespace, pod), [])
                if service and service not in names:
                    names.append(service)
        return found

    def _asked(self, key: _Key, pod: PodFacts, fronts: Mapping[_Key, Sequence[str]]) -> Iterator[Mapping[str, str]]:
        """The annotations that ask for a pod's page: its own, those of its services, or none but the selector."""
        if not pod.address or pod.notes.get(SCRAPE, "").lower() == "false":
            return
        if pod.wants_scrape or self._selected:
            yield pod.notes
        for service in fronts.get(key, ()):
            notes = self._services.get((key[0], service), {})
            if notes.get(SCRAPE, "").lower() == "true":
                yield notes

    def _completed(self, page: Found, pod: PodFacts) -> Found:
        kind = self._nodes.get(("", pod.node), {}).get("gpu_type")
        return page if not kind else Found(page.address, {**page.labels, "gpu_type": kind}, page.adapter, page.identity)

    def _edges(self, fronts: Mapping[_Key, Sequence[str]]) -> Iterator[Edge]:
        """Node - pod, GPU - pod where it is written down, and for groups pod - replica - service.

        Of pods that went lately only what they rested on: label ``until`` says that they did.
        """
        gone = {key: one.pod for key, one in self._gone.items() if key not in self._pods}
        for key, pod in (*self._pods.items(), *gone.items()):
            node = EntityRef(self._cluster, EntityKind.NODE, None, pod.node)
            if pod.node:
                yield node, pod.entity
            for device in pod.held.devices:
                if device.startswith(("GPU-", "MIG-")):
                    gpu = EntityRef(self._cluster, EntityKind.GPU, None, device)
                    yield gpu, pod.entity
                    if pod.node:
                        yield node, gpu
            if pod.group and key not in gone:  # a replica rests on those that are there
                yield pod.entity, pod.replica
                name = pod.service or next(iter(fronts.get(key, ())), "") or pod.workload
                yield pod.replica, EntityRef(self._cluster, EntityKind.SERVICE, pod.entity.namespace, name)

    def _facts(self, fronts: Mapping[_Key, Sequence[str]]) -> Iterator[tuple[EntityRef, dict[str, str]]]:
        for (_, name), facts in self._nodes.items():
            yield EntityRef(self._cluster, EntityKind.NODE, None, name), facts
        for key, one in self._gone.items():
            if key not in self._pods:
                facts = {"uid": one.pod.uid, "node": one.pod.node, "since": one.pod.since, "until": one.until}
                yield one.pod.entity, {name: value for name, value in facts.items() if value}
        members: dict[EntityRef, int] = {}
        leaders: dict[EntityRef, PodFacts] = {}
        for key, pod in self._pods.items():
            facts = {
                "uid": pod.uid,
                "node": pod.node,
                "workload": pod.workload,
                "service": pod.service or next(iter(fronts.get(key, ())), ""),
                "since": pod.since,
                "group": pod.group,
                **pod.held.facts,
            }
            yield pod.entity, {name: value for name, value in facts.items() if value}
            if pod.group:
                members[pod.replica] = members.get(pod.replica, 0) + 1
                if pod.leads:
                    leaders[pod.replica] = pod
        for replica, count in members.items():
            leader = leaders.get(replica)
            yield replica, {**(leader.own if leader else {}), "members": str(count)}

    async def close(self) -> None:
        """Close every connection."""
        await self._api.close()


def _is_beside(page: Found) -> bool:
    """True for a page that is read beside any engine: of a device exporter, a sidecar."""
    return page.adapter in ADAPTERS and adapter(page.adapter).target is not EntityKind.REPLICA


def _said(faults: Sequence[CollectError]) -> list[str]:
    return [fault.message for fault in faults]
