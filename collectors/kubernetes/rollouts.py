"""Rollouts, configuration changes and scaling with author and outcome, from the workloads of a cluster.

Deployments, stateful sets, LeaderWorkerSets, KServe's inference services and Ray services are read directly. Objects
owned by one of them are not reported again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from collectors.events.unresolved_event import FIRST_LOOK, UnresolvedEvent
from collectors.kubernetes import workload_diff as changes
from collectors.kubernetes.actors import Actor, actor_of
from collectors.kubernetes.api import Json, KubeApi, items, mapping, parse_time, text, texts, version_of
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
from collectors.kubernetes.rollout_status import PendingRollouts
from outrider.errors import CollectError
from outrider.model import EntityKind, EntityRef, EventKind
from outrider.records.change_log import ChangeEnd

SOURCE = "kubernetes"
_TEMPLATE, _SCALE, _SPEC = "f:spec/f:template", "f:spec/f:replicas", "f:spec"
_OWNERS = frozenset(resource.kind for resource in WORKLOADS)


@dataclass(slots=True)
class _Workload:
    """Last known state of a workload."""

    shape: changes.WorkloadShape
    revision: int


@dataclass(slots=True)
class WorkloadChangeTracker:
    """Compares each workload with its last state. ``ends`` are the outcomes since they were last taken."""

    api: KubeApi
    cluster: str
    service_label: str
    ends: list[ChangeEnd] = field(default_factory=list)
    _known: dict[str, _Workload] = field(default_factory=dict)
    _last_seen: dict[str, datetime] = field(default_factory=dict)
    _pending: PendingRollouts = field(default_factory=PendingRollouts)

    async def take(
        self, resource: Resource, changed: Sequence[ObjectChange], objects: Objects, at: datetime
    ) -> list[UnresolvedEvent]:
        """Returns the changes of these workloads."""
        events: list[UnresolvedEvent] = []
        for change in changed:
            document = change.after or change.before
            uid = text(mapping(document.get("metadata")).get("uid"))
            if not change.after:
                self._known.pop(uid, None)
                self._last_seen.pop(uid, None)
                self.ends.extend(self._pending.deleted(uid, at))
            elif not (owner_of(document)[0] in _OWNERS and objects.has(owner_of(document)[0])):
                coded = await self._events_of(resource, templated(resource, change.after), change.before, at)
                for code, event in coded:
                    self.ends.extend(self._pending.note(uid, event.key, code, at))
                events += [event for _, event in coded]
                self.ends.extend(self._pending.update(uid, change.after, at))
        return events

    async def _events_of(
        self, resource: Resource, workload: Json, cached: Json, at: datetime
    ) -> list[tuple[str, UnresolvedEvent]]:
        uid = text(mapping(workload.get("metadata")).get("uid"))
        now = _Workload(changes.shape_of(workload), changes.revision_of(workload))
        before = self._known.get(uid)
        self._known[uid] = now
        last_seen, self._last_seen[uid] = self._last_seen.get(uid, at), at
        has_sets = resource is DEPLOYMENTS
        if before is None:
            events = await self._recent_change(workload, now, at) if has_sets else []
            return [(event.code, event) for event in events]
        events = []
        if not now.shape.same_template(before.shape):
            events.append(
                await self._template_event_of(workload, cached, (before, now), last_seen, at, has_sets=has_sets)
            )
        scale = changes.scale_change(before.shape, now.shape)
        if scale is not None:
            generation = text(mapping(workload.get("metadata")).get("generation"))
            key = f"scale/{uid}/{generation or version_of(workload)}"
            who = actor_of(workload, (_SCALE,), cached)
            events.append(self._event(workload, scale, _managed_at(workload, last_seen, at), key, who))
        return [(event.code, event) for event in events]

    def config_changes(self, changed: Sequence[ObjectChange], objects: Objects, at: datetime) -> list[UnresolvedEvent]:
        """ConfigMap changes, reported for every workload whose pods read them. Values are never reported."""
        events: list[UnresolvedEvent] = []
        for change in changed:
            before, after = digests(change.before), digests(change.after)
            if not change.before or before == after:
                continue
            namespace, name = key_of(change.after or change.before)
            version = version_of(change.after or change.before)
            who = actor_of(change.after, ("f:data", "f:binaryData"), change.before) if change.after else Actor()
            keys_changed = changes.WorkloadChange("configmap", _keys(name, before, after), _keys(name, after, before))
            for resource in WORKLOADS:
                for workload in objects.all(resource):
                    template = templated(resource, workload)
                    if key_of(workload)[0] != namespace or name not in config_maps(template):
                        continue
                    uid = text(mapping(workload.get("metadata")).get("uid"))
                    key = f"configmap/{uid}/{name}/{version}"
                    events.append(self._event(template, keys_changed, at, key, who))
        return events

    async def _recent_change(self, workload: Json, now: _Workload, at: datetime) -> list[UnresolvedEvent]:
        """The last change of a workload that is seen for the first time, if it is recent."""
        progressed = _progressed_at(workload)
        if progressed is None or progressed < at - FIRST_LOOK:
            return []
        sets = await self._replicasets(workload)
        if len(sets) < 2:
            return []
        old, new = sets[-2], sets[-1]
        when = self._made_at(workload, new, at)
        if when is None or when < at - FIRST_LOOK:
            return []
        before = _Workload(changes.shape_of(old), changes.revision_of(old))
        return [self._template(workload, (before, now), new, when, {})]

    async def _template_event_of(
        self,
        workload: Json,
        cached: Json,
        states: tuple[_Workload, _Workload],
        last_seen: datetime,
        at: datetime,
        *,
        has_sets: bool,
    ) -> UnresolvedEvent:
        sets = await self._replicasets(workload) if has_sets else []
        new = sets[-1] if sets and changes.shape_of(sets[-1]).same_template(states[1].shape) else {}
        when = (self._made_at(workload, new, at) if has_sets else _managed_at(workload, last_seen, at)) or at
        return self._template(workload, states, new, when, cached)

    def _template(
        self, workload: Json, states: tuple[_Workload, _Workload], new: Json, when: datetime, cached: Json
    ) -> UnresolvedEvent:
        before, now = states
        revision = changes.revision_of(new) or max(now.revision, before.revision + 1)
        numbered = (before.revision, revision) if now.revision or before.revision else (0, 0)
        change = changes.template_change(
            before.shape, now.shape, back=changes.had_earlier_revision(new), revisions=numbered
        )
        uid = text(mapping(workload.get("metadata")).get("uid"))
        if not numbered[1]:  # only deployments have revision numbers
            generation = mapping(workload.get("metadata")).get("generation")
            revision = generation if isinstance(generation, int) and not isinstance(generation, bool) else revision
        who = actor_of(workload, (_TEMPLATE,), cached)
        who = who if who.name else actor_of(workload, before=cached)
        return self._event(workload, change, when, f"revision/{uid}/{revision}", who)

    def _made_at(self, workload: Json, new: Json, at: datetime) -> datetime | None:
        """Start of a revision: creation of its replica set, or the last progress if the set existed before."""
        created = (
            None
            if changes.had_earlier_revision(new)
            else parse_time(mapping(new.get("metadata")).get("creationTimestamp"))
        )
        when = created or _progressed_at(workload)
        return None if when is None else min(when, at)

    async def _replicasets(self, deployment: Json) -> list[Json]:
        """Replica sets of a deployment by revision; none without any or without permission."""
        meta = mapping(deployment.get("metadata"))
        selector = texts(mapping(mapping(deployment.get("spec")).get("selector")).get("matchLabels"))
        path = f"/apis/apps/v1/namespaces/{text(meta.get('namespace'))}/replicasets"
        query = {"labelSelector": ",".join(f"{name}={value}" for name, value in selector.items())} if selector else {}
        try:
            sets, _ = await self.api.objects(path, query)
        except CollectError:
            return []
        mine = [
            item
            for item in sets
            for owner in items(mapping(item.get("metadata")).get("ownerReferences"))
            if owner.get("uid") == meta.get("uid")
        ]
        return sorted(mine, key=changes.revision_of)

    def _event(
        self, workload: Json, change: changes.WorkloadChange, when: datetime, key: str, who: Actor
    ) -> UnresolvedEvent:
        namespace, name = key_of(workload)
        service = service_of(workload, self.service_label)
        attributes: Mapping[str, str] = {
            "from": change.before,
            "to": change.after,
            "workload": name,
            "service": service,
        }
        return UnresolvedEvent(
            kind=EventKind.CHANGE,
            code=change.code,
            at=when,
            source=SOURCE,
            key=f"{SOURCE}/{self.cluster}/{key}",
            entity=EntityRef(self.cluster, EntityKind.WORKLOAD, namespace or None, name),
            attributes={**{name: value for name, value in attributes.items() if value}, **who.attributes},
            aim=EntityKind.SERVICE,
            service=service,
        )


def _progressed_at(workload: Json) -> datetime | None:
    conditions = items(mapping(workload.get("status")).get("conditions"))
    return next(
        (
            parse_time(condition.get("lastUpdateTime"))
            for condition in conditions
            if condition.get("type") == "Progressing"
        ),
        None,
    )


def _managed_at(workload: Json, before: datetime, at: datetime) -> datetime:
    """Last write to an object, if it is recorded and after ``before``; else now."""
    fields = items(mapping(workload.get("metadata")).get("managedFields"))
    times = [time for time in (parse_time(entry.get("time")) for entry in fields) if time is not None]
    latest = max(times, default=at)
    return latest if before <= latest <= at else at


def _keys(name: str, mine: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Changed keys of a ConfigMap, each with the digest of its value."""
    changed = [f"{key}@{digest}" for key, digest in sorted(mine.items()) if other.get(key) != digest]
    return f"{name}: {' '.join(changed)}"[:400] if changed else ""
