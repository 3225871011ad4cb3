"""What is rolled out, reconfigured or scaled, by whom, and how that ended: read from the workloads of a cluster.

Deployments, stateful sets, LeaderWorkerSets, KServe's inference services and Ray services speak for themselves.
What one of them owns says nothing a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from collectors.events.unresolved_event import FIRST_LOOK, UnresolvedEvent
from collectors.kubernetes import workload_diff as changes
from collectors.kubernetes.actors import Actor, actor_of
from collectors.kubernetes.api import Json, KubeApi, instant, items, mapping, text, texts, version_of
from collectors.kubernetes.objects import (
    DEPLOYMENTS,
    WORKLOADS,
    ObjectChange,
    Objects,
    Resource,
    digests,
    key_of,
    owner_of,
)
from collectors.kubernetes.pod_templates import config_maps, service_of, templated
from collectors.kubernetes.rollout_status import Endings
from outrider.errors import CollectError
from outrider.model import EntityKind, EntityRef, EventKind
from outrider.records.change_log import ChangeEnd

SOURCE = "kubernetes"
_TEMPLATE, _SCALE, _SPEC = "f:spec/f:template", "f:spec/f:replicas", "f:spec"
_OWNERS = frozenset(one.kind for one in WORKLOADS)


@dataclass(slots=True)
class _Workload:
    """What was last known of a workload."""

    shape: changes.Shape
    revision: int


@dataclass(slots=True)
class WorkloadChanges:
    """Compares each workload with what it was. ``ends`` are those of changes since they were last taken."""

    api: KubeApi
    cluster: str
    service_label: str
    ends: list[ChangeEnd] = field(default_factory=list)
    _known: dict[str, _Workload] = field(default_factory=dict)
    _looked: dict[str, datetime] = field(default_factory=dict)
    _endings: Endings = field(default_factory=Endings)

    async def take(
        self, resource: Resource, changed: Sequence[ObjectChange], objects: Objects, at: datetime
    ) -> list[UnresolvedEvent]:
        """What was done to these workloads."""
        found: list[UnresolvedEvent] = []
        for one in changed:
            known = one.after or one.before
            uid = text(mapping(known.get("metadata")).get("uid"))
            if not one.after:
                self._known.pop(uid, None)
                self._looked.pop(uid, None)
                self.ends.extend(self._endings.gone(uid, at))
            elif not (owner_of(known)[0] in _OWNERS and objects.has(owner_of(known)[0])):
                told = await self._one(resource, templated(resource, one.after), one.before, at)
                for code, sighting in told:
                    self.ends.extend(self._endings.note(uid, sighting.key, code, at))
                found += [sighting for _, sighting in told]
                self.ends.extend(self._endings.look(uid, one.after, at))
        return found

    async def _one(
        self, resource: Resource, found: Json, kept: Json, at: datetime
    ) -> list[tuple[str, UnresolvedEvent]]:
        uid = text(mapping(found.get("metadata")).get("uid"))
        now = _Workload(changes.shape_of(found), changes.revision_of(found))
        before = self._known.get(uid)
        self._known[uid] = now
        looked, self._looked[uid] = self._looked.get(uid, at), at
        has_sets = resource is DEPLOYMENTS
        if before is None:
            told = await self._lately(found, now, at) if has_sets else []
            return [(one.code, one) for one in told]
        told = []
        if not now.shape.same_template(before.shape):
            told.append(await self._changed(found, kept, (before, now), looked, at, has_sets=has_sets))
        scale = changes.scale_change(before.shape, now.shape)
        if scale is not None:
            generation = text(mapping(found.get("metadata")).get("generation"))
            key = f"scale/{uid}/{generation or version_of(found)}"
            who = actor_of(found, (_SCALE,), kept)
            told.append(self._sighting(found, scale, _managed_at(found, looked, at), key, who))
        return [(one.code, one) for one in told]

    def config_changes(self, changed: Sequence[ObjectChange], objects: Objects, at: datetime) -> list[UnresolvedEvent]:
        """ConfigMaps whose data changed, told of every workload whose pods read them. Values are never told."""
        found: list[UnresolvedEvent] = []
        for one in changed:
            before, after = digests(one.before), digests(one.after)
            if not one.before or before == after:
                continue
            namespace, name = key_of(one.after or one.before)
            version = version_of(one.after or one.before)
            who = actor_of(one.after, ("f:data", "f:binaryData"), one.before) if one.after else Actor()
            change = changes.Change("configmap", _keys(name, before, after), _keys(name, after, before))
            for resource in WORKLOADS:
                for workload in objects.all(resource):
                    shown = templated(resource, workload)
                    if key_of(workload)[0] != namespace or name not in config_maps(shown):
                        continue
                    uid = text(mapping(workload.get("metadata")).get("uid"))
                    key = f"configmap/{uid}/{name}/{version}"
                    found.append(self._sighting(shown, change, at, key, who))
        return found

    async def _lately(self, found: Json, now: _Workload, at: datetime) -> list[UnresolvedEvent]:
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
        return [self._template(found, (before, now), new, when, {})]

    async def _changed(
        self,
        found: Json,
        kept: Json,
        states: tuple[_Workload, _Workload],
        looked: datetime,
        at: datetime,
        *,
        has_sets: bool,
    ) -> UnresolvedEvent:
        sets = await self._replicasets(found) if has_sets else []
        new = sets[-1] if sets and changes.shape_of(sets[-1]).same_template(states[1].shape) else {}
        when = (self._made_at(found, new, at) if has_sets else _managed_at(found, looked, at)) or at
        return self._template(found, states, new, when, kept)

    def _template(
        self, found: Json, states: tuple[_Workload, _Workload], new: Json, when: datetime, kept: Json
    ) -> UnresolvedEvent:
        before, now = states
        revision = changes.revision_of(new) or max(now.revision, before.revision + 1)
        numbered = (before.revision, revision) if now.revision or before.revision else (0, 0)
        change = changes.template_change(
            before.shape, now.shape, back=changes.was_there_before(new), revisions=numbered
        )
        uid = text(mapping(found.get("metadata")).get("uid"))
        if not numbered[1]:  # only deployments number their templates
            generation = mapping(found.get("metadata")).get("generation")
            revision = generation if isinstance(generation, int) and not isinstance(generation, bool) else revision
        who = actor_of(found, (_TEMPLATE,), kept)
        who = who if who.name else actor_of(found, before=kept)
        return self._sighting(found, change, when, f"revision/{uid}/{revision}", who)

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
            sets, _ = await self.api.objects(path, wanted)
        except CollectError:
            return []
        mine = [
            one
            for one in sets
            for owner in items(mapping(one.get("metadata")).get("ownerReferences"))
            if owner.get("uid") == meta.get("uid")
        ]
        return sorted(mine, key=changes.revision_of)

    def _sighting(self, found: Json, change: changes.Change, when: datetime, key: str, who: Actor) -> UnresolvedEvent:
        namespace, name = key_of(found)
        service = service_of(found, self.service_label)
        told: Mapping[str, str] = {"from": change.before, "to": change.after, "workload": name, "service": service}
        return UnresolvedEvent(
            kind=EventKind.CHANGE,
            code=change.code,
            at=when,
            source=SOURCE,
            key=f"{SOURCE}/{self.cluster}/{key}",
            entity=EntityRef(self.cluster, EntityKind.WORKLOAD, namespace or None, name),
            attributes={**{name: value for name, value in told.items() if value}, **who.attributes},
            aim=EntityKind.SERVICE,
            service=service,
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


def _keys(name: str, mine: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The keys of a ConfigMap that differ, each with the digest of its value."""
    told = [f"{key}@{digest}" for key, digest in sorted(mine.items()) if other.get(key) != digest]
    return f"{name}: {' '.join(told)}"[:400] if told else ""
