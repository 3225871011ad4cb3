"""Kubernetes as a source of events: what its Events say, and what is rolled out, reconfigured or scaled.

Plain HTTP against the REST API. An Event with the annotation ``outrider.dev/change: CODE`` announces a
change that no object shows (a driver, a power limit, a route): whoever makes such changes can post one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from collectors import workload_changes as changes
from collectors.kube_api import Feed, Json, KubeApi, Seen, items, mapping, text, texts, version_of
from collectors.sightings import FIRST_LOOK, MOST_TEXT, Sighting
from outrider.clock import parse_rfc3339
from outrider.errors import CollectError
from outrider.model import EntityKind, EntityRef, EventKind

SOURCE = "kubernetes"
CHANGE = "outrider.dev/change"
FROM, TO = "outrider.dev/from", "outrider.dev/to"
OURS = "outrider.dev/"  # objects of this group bear the names of our own kinds
SERVICE_LABEL = "app.kubernetes.io/name"
_KINDS = {
    "Pod": EntityKind.POD,
    "Node": EntityKind.NODE,
    "Service": EntityKind.SERVICE,
    "Deployment": EntityKind.WORKLOAD,
    "ReplicaSet": EntityKind.WORKLOAD,
    "StatefulSet": EntityKind.WORKLOAD,
    "DaemonSet": EntityKind.WORKLOAD,
    "Job": EntityKind.WORKLOAD,
    "LeaderWorkerSet": EntityKind.WORKLOAD,
    "InferenceService": EntityKind.WORKLOAD,
    "HorizontalPodAutoscaler": EntityKind.WORKLOAD,
    "ScaledObject": EntityKind.WORKLOAD,
}
# The hash of a pod template, in the letters that Kubernetes makes such names of.
_TEMPLATE_HASH = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5,10}$")
_WORKLOADS = ("deployments", "statefulsets")
_NO_NAMESPACE = frozenset(
    {EntityKind.CLUSTER, EntityKind.POOL, EntityKind.NODE, EntityKind.SWITCH, EntityKind.STORAGE, EntityKind.GPU}
)


def event_sighting(found: Json, cluster: str, at: datetime) -> tuple[str, int, Sighting] | None:
    """An Event's uid, its count, and the sighting it makes; None for one that is about nothing we know.

    Reads ``v1`` and ``events.k8s.io/v1``; fields may be missing or null. ``at`` is now: no event is later.
    """
    meta = mapping(found.get("metadata"))
    involved = mapping(found.get("involvedObject")) or mapping(found.get("regarding"))
    entity = entity_of(involved, cluster)
    series, notes = mapping(found.get("series")), texts(meta.get("annotations"))
    reason, uid = text(found.get("reason")), text(meta.get("uid"))
    if entity is None or not reason or not uid:
        return None
    counts = [found.get("count"), found.get("deprecatedCount"), series.get("count")]
    count = max((number for number in counts if isinstance(number, int) and 0 < number < 2**31), default=1)
    times = (
        *(series.get("lastObservedTime"), found.get("lastTimestamp"), found.get("deprecatedLastTimestamp")),
        *(found.get("eventTime"), found.get("firstTimestamp"), meta.get("creationTimestamp")),
    )
    when = next((one for one in map(instant, times) if one is not None), at)
    source = mapping(found.get("source"))
    attributes = {
        "text": (text(found.get("message")) or text(found.get("note")))[:MOST_TEXT],
        "type": text(found.get("type")),
        "count": str(count),
        "component": text(source.get("component")) or text(found.get("reportingComponent")),
    }
    kind, code = EventKind.KUBERNETES, reason
    if notes.get(CHANGE):
        kind, code = EventKind.CHANGE, notes[CHANGE]
        attributes |= {"from": notes.get(FROM, ""), "to": notes.get(TO, "")}
    attributes = {name: value for name, value in attributes.items() if value}
    key = f"{SOURCE}/{cluster}/{uid}/{count}"
    return uid, count, Sighting(kind, code, min(when, at), SOURCE, key, entity, attributes)


def entity_of(involved: Json, cluster: str) -> EntityRef | None:
    """The component of an object reference; None for a kind that is none of ours."""
    name, said = text(involved.get("name")), text(involved.get("kind"))
    kind = _KINDS.get(said)
    if said == "ReplicaSet":
        name = _TEMPLATE_HASH.sub("", name)  # what people know is its deployment
    if text(involved.get("apiVersion")).startswith(OURS):
        kind = next((one for one in EntityKind if one.value == said.lower()), None)
    if kind is None or not name:
        return None
    namespace = None if kind in _NO_NAMESPACE else text(involved.get("namespace")) or None
    return EntityRef(cluster, kind, namespace, name)


def instant(value: Any) -> datetime | None:
    """A time of the API, None when it is none."""
    try:
        return parse_rfc3339(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


@dataclass(slots=True)
class _Events:
    """How often each Event was counted already."""

    cluster: str
    counts: dict[str, int] = field(default_factory=dict)

    async def take(self, news: Sequence[Seen], at: datetime) -> list[Sighting]:
        """Those that are new, or have happened once more."""
        found, known = [], self.counts
        if news and news[0].what == "LISTED":
            self.counts = {}  # what is no longer listed has expired
        for seen in news:
            read = event_sighting(seen.found, self.cluster, at)
            if read is None:
                continue
            uid, count, sighting = read
            if seen.what == "DELETED":
                self.counts.pop(uid, None)
                continue
            # An old one is news only while it goes on; a list is full of what was told before.
            if count > known.get(uid, 0) and (seen.what == "MODIFIED" or sighting.at >= at - FIRST_LOOK):
                found.append(sighting)
            self.counts[uid] = count
        return found


@dataclass(slots=True)
class _Workload:
    """What was last known of a deployment."""

    shape: changes.Shape
    revision: int


@dataclass(slots=True)
class _Followed:
    """One feed, and what takes what it brings."""

    feed: Feed
    take: Callable[[Sequence[Seen], datetime], Awaitable[list[Sighting]]]


class Kubernetes:
    """Reads one API server. Resources fail one by one: what may be read is read."""

    def __init__(
        self,
        name: str,
        api: KubeApi,
        cluster: str,
        *,
        namespaces: Sequence[str] = (),
        service_label: str = SERVICE_LABEL,
    ) -> None:
        """Without ``namespaces`` all are read. ``service_label`` of a workload names the service it runs."""
        self.name = name
        self._api, self._cluster, self._label = api, cluster, service_label
        self._workloads: dict[str, _Workload] = {}
        self._looked: dict[str, datetime] = {}
        self._followed = [
            _Followed(Feed(api, f"{group}{where}/{resource}"), take)
            for where in ([f"/namespaces/{one}" for one in namespaces] or [""])
            for group, resource, take in (
                ("/api/v1", "events", _Events(cluster).take),
                *(("/apis/apps/v1", resource, self._take_workloads) for resource in _WORKLOADS),
            )
        ]

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> tuple[list[Sighting], list[CollectError]]:
        """What is new since the last reading; at the first one, of the last ``FIRST_LOOK``."""
        del nodes
        found: list[Sighting] = []
        errors: list[CollectError] = []
        for answer in await asyncio.gather(*(self._follow(one, at) for one in self._followed)):
            if isinstance(answer, CollectError):
                errors.append(answer)
            else:
                found.extend(answer)
        return found, errors

    async def _follow(self, one: _Followed, at: datetime) -> list[Sighting] | CollectError:
        try:
            news = await one.feed.read()
        except CollectError as error:
            return error
        return await one.take(news, at)

    async def close(self) -> None:
        """Close every connection."""
        await self._api.close()

    async def _take_workloads(self, news: Sequence[Seen], at: datetime) -> list[Sighting]:
        found: list[Sighting] = []
        for seen in news:
            uid = text(mapping(seen.found.get("metadata")).get("uid"))
            if not uid:
                continue
            if seen.what == "DELETED":
                self._workloads.pop(uid, None)
                self._looked.pop(uid, None)
                continue
            now = _Workload(changes.shape_of(seen.found), changes.revision_of(seen.found))
            before = self._workloads.get(uid)
            self._workloads[uid] = now
            looked, self._looked[uid] = self._looked.get(uid, at), at
            if before is None:
                found += await self._lately(seen.found, now, at)
                continue
            if not now.shape.same_template(before.shape):
                found.append(await self._changed(seen.found, before, now, at))
            scale = changes.scale_change(before.shape, now.shape)
            if scale is not None:
                generation = text(mapping(seen.found.get("metadata")).get("generation"))
                key = f"scale/{uid}/{generation or version_of(seen.found)}"
                found.append(self._sighting(seen.found, scale, _managed_at(seen.found, looked, at), key))
        return found

    async def _lately(self, found: Json, now: _Workload, at: datetime) -> list[Sighting]:
        """The last change of a workload that is seen for the first time, when it was not long ago."""
        progressed = _progressed_at(found)
        if progressed is None or progressed < at - FIRST_LOOK:
            return []
        sets = await self._replicasets(found)
        if len(sets) < 2:
            return []
        old, new = sets[-2], sets[-1]
        when = self._made_at(found, new, at)
        if when is None or when < at - FIRST_LOOK:
            return []
        before = _Workload(changes.shape_of(old), changes.revision_of(old))
        return [self._template(found, before, now, new, when)]

    async def _changed(self, found: Json, before: _Workload, now: _Workload, at: datetime) -> Sighting:
        sets = await self._replicasets(found)
        new = sets[-1] if sets and changes.shape_of(sets[-1]).same_template(now.shape) else {}
        return self._template(found, before, now, new, self._made_at(found, new, at) or at)

    def _template(self, found: Json, before: _Workload, now: _Workload, new: Json, when: datetime) -> Sighting:
        revision = changes.revision_of(new) or max(now.revision, before.revision + 1)
        change = changes.template_change(
            before.shape, now.shape, back=changes.was_there_before(new), revisions=(before.revision, revision)
        )
        uid = text(mapping(found.get("metadata")).get("uid"))
        return self._sighting(found, change, when, f"revision/{uid}/{revision}")

    def _made_at(self, found: Json, new: Json, at: datetime) -> datetime | None:
        """When a revision began: its replica set's birth, or the last progress where it had lived before."""
        made = None if changes.was_there_before(new) else instant(mapping(new.get("metadata")).get("creationTimestamp"))
        when = made or _progressed_at(found)
        return None if when is None else min(when, at)

    async def _replicasets(self, found: Json) -> list[Json]:
        """The replica sets of a deployment by revision; none when it has none or they may not be read."""
        meta = mapping(found.get("metadata"))
        selector = texts(mapping(mapping(found.get("spec")).get("selector")).get("matchLabels"))
        path = f"/apis/apps/v1/namespaces/{text(meta.get('namespace'))}/replicasets"
        wanted = {"labelSelector": ",".join(f"{name}={value}" for name, value in selector.items())} if selector else {}
        try:
            sets, _ = await self._api.objects(path, wanted)
        except CollectError:
            return []
        mine = [
            one
            for one in sets
            for owner in items(mapping(one.get("metadata")).get("ownerReferences"))
            if owner.get("uid") == meta.get("uid")
        ]
        return sorted(mine, key=changes.revision_of)

    def _sighting(self, found: Json, change: changes.Change, when: datetime, key: str) -> Sighting:
        meta = mapping(found.get("metadata"))
        name, namespace = text(meta.get("name")), text(meta.get("namespace")) or None
        template = mapping(mapping(found.get("spec")).get("template"))
        labels = {**texts(mapping(template.get("metadata")).get("labels")), **texts(meta.get("labels"))}
        told: Mapping[str, str] = {"from": change.before, "to": change.after, "workload": name}
        return Sighting(
            kind=EventKind.CHANGE,
            code=change.code,
            at=when,
            source=SOURCE,
            key=f"{SOURCE}/{self._cluster}/{key}",
            entity=EntityRef(self._cluster, EntityKind.WORKLOAD, namespace, name),
            attributes={name: value for name, value in told.items() if value},
            aim=EntityKind.SERVICE,
            service=labels.get(self._label, ""),
        )


def _progressed_at(found: Json) -> datetime | None:
    conditions = items(mapping(found.get("status")).get("conditions"))
    return next((instant(one.get("lastUpdateTime")) for one in conditions if one.get("type") == "Progressing"), None)


def _managed_at(found: Json, before: datetime, at: datetime) -> datetime:
    """When somebody last wrote to an object, if that is told and was after ``before``; else now."""
    fields = items(mapping(found.get("metadata")).get("managedFields"))
    times = [one for one in (instant(entry.get("time")) for entry in fields) if one is not None]
    latest = max(times, default=at)
    return latest if before <= latest <= at else at
