"""Logs of model servers as events, read from the Kubernetes API pod by pod.

Reads the pods that request an accelerator, or those of a selector. Lines written since the last reading are matched
against ``engine_log.yaml``. If a container restarted in between, the previous container's log is read too: the last
lines of a process are the most informative.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from collectors.events.unresolved_event import FIRST_LOOK, UnresolvedEvent
from collectors.kubernetes.api import Json, KubeApi, items, mapping, text
from collectors.kubernetes.objects import PODS, ResourceUpdate
from collectors.kubernetes.watch import ResourceWatcher, SharedWatches
from collectors.logs.matcher import LogMatcher, Origin
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef

SOURCE = "engine_log"
MOST_BYTES = 1024 * 1024  # of one pod in one reading; the rest is dropped
AT_ONCE = 16
_NOT_YET, _GONE = 400, 404  # no container has started; the pod no longer exists
_ACCELERATORS = ("gpu", "npu", "ascend", "gaudi", "neuron", "tpu")


@dataclass(slots=True)
class PodLog:
    """State of one pod's log between two readings. ``last`` is the time of the newest line."""

    pod: EntityRef
    uid: str
    container: str
    restarts: int
    read_restarts: int = 0
    last: datetime | None = None
    at_last: set[str] = field(default_factory=set)
    lines: LogMatcher = field(default_factory=lambda: LogMatcher(SOURCE))

    def new_events(self, log: str, at: datetime) -> Iterator[UnresolvedEvent]:
        """Events of matching lines, one per burst of a code; ``at`` dates lines without a timestamp."""
        origin = Origin(self.pod, self.uid, self.container)
        for when, line in stamped(log):
            if when is None or self._is_new(when, line):
                yield from self.lines.take(origin, when, line, at)

    def _is_new(self, when: datetime, line: str) -> bool:
        """The API resolves whole seconds only, so the newest lines are returned again."""
        if self.last is not None and (when < self.last or (when == self.last and line in self.at_last)):
            return False
        if when != self.last:
            self.last, self.at_last = when, set()
        self.at_last.add(line)
        return True


def stamped(log: str) -> Iterator[tuple[datetime | None, str]]:
    """Lines with the kubelet's timestamp; None if there is none."""
    for line_with_stamp in log.splitlines():
        stamp, _, line = line_with_stamp.partition(" ")
        try:
            when = datetime.fromisoformat(stamp)
        except ValueError:
            yield None, line_with_stamp
            continue
        yield (when.astimezone(UTC), line) if when.tzinfo is not None else (None, line_with_stamp)


def pod_log(pod: Json, cluster: str, container: str = "", *, any_pod: bool = False) -> PodLog | None:
    """The log to read of a pod object; None for an unselected pod or one that has not started.

    ``container`` is read if it is named, else the one that requests an accelerator, else the first if ``any_pod``.
    """
    meta, spec, status = (mapping(pod.get(part)) for part in ("metadata", "spec", "status"))
    name, namespace, uid = (text(meta.get(part)) for part in ("name", "namespace", "uid"))
    offered = items(spec.get("containers"))
    chosen = [
        container_spec
        for container_spec in offered
        if (text(container_spec.get("name")) == container if container else _accelerated(container_spec))
    ]
    chosen = chosen or (offered if any_pod and not container else [])
    if not (name and namespace and uid and chosen):
        return None
    reading = text(chosen[0].get("name"))
    state = next(
        (
            container_spec
            for container_spec in items(status.get("containerStatuses"))
            if text(container_spec.get("name")) == reading
        ),
        None,
    )
    if state is None or not (mapping(state.get("state")).keys() & {"running", "terminated"} or state.get("lastState")):
        return None
    restarts = state.get("restartCount")
    count = restarts if isinstance(restarts, int) and restarts > 0 else 0
    return PodLog(EntityRef(cluster, EntityKind.POD, namespace, name), uid, reading, count)


def _accelerated(container: Json) -> bool:
    resources = mapping(container.get("resources"))
    requested = {**mapping(resources.get("limits")), **mapping(resources.get("requests"))}
    return any(word in name.lower() for name in requested for word in _ACCELERATORS)


def _is_in(log: PodLog, namespace: str) -> bool:
    return namespace in ("", log.pod.namespace)


class EngineLogs:
    """Reads the logs of one cluster's model servers."""

    def __init__(
        self,
        name: str,
        api: KubeApi | SharedWatches,
        cluster: str,
        *,
        namespaces: Sequence[str] = (),
        label_selector: str = "",
        container: str = "",
    ) -> None:
        """Without ``label_selector``, pods that request an accelerator are read."""
        self.name = name
        watches = SharedWatches.of(api)
        self._api, self._cluster = watches.api, cluster
        self._container, self._any = container, bool(label_selector or container)
        chosen = (("labelSelector", label_selector),) if label_selector else ()
        self._follower = ResourceWatcher(watches, [replace(PODS, optional=False, chosen=chosen)], namespaces)
        self.lines = LogMatcher(SOURCE)
        self._logs: dict[str, PodLog] = {}

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> tuple[list[UnresolvedEvent], list[CollectError]]:
        """Events since the last reading; the first one covers ``FIRST_LOOK``."""
        del nodes
        changes, faults = await self._follower.read(at)
        errors = [fault.error for fault in faults]
        for news in changes:
            self._note(news)
        events: list[UnresolvedEvent] = []
        room = asyncio.Semaphore(AT_ONCE)
        for answer in await asyncio.gather(*(self._read_pod(log, at, room) for log in list(self._logs.values()))):
            if isinstance(answer, CollectError):
                errors.append(answer)
            else:
                events.extend(answer)
        return events, errors

    def _note(self, news: ResourceUpdate) -> None:
        if news.whole:
            listed = {text(mapping(change.object.get("metadata")).get("uid")) for change in news.changes}
            for uid in [uid for uid, log in self._logs.items() if uid not in listed and _is_in(log, news.namespace)]:
                del self._logs[uid]
        for change in news.changes:
            uid = text(mapping(change.object.get("metadata")).get("uid"))
            log = pod_log(change.object, self._cluster, self._container, any_pod=self._any)
            if change.what == "DELETED" or log is None:
                self._logs.pop(uid, None)
            elif uid in self._logs:
                self._logs[uid].restarts = log.restarts
            else:
                log.lines = self.lines
                self._logs[uid] = log

    async def _read_pod(
        self, log: PodLog, at: datetime, room: asyncio.Semaphore
    ) -> list[UnresolvedEvent] | CollectError:
        async with room:
            try:
                begin = log.last or at - FIRST_LOOK
                texts_read = (
                    [await self._request(log, begin, previous=True)] if log.restarts > log.read_restarts else []
                )
                log.read_restarts = log.restarts
                texts_read.append(await self._request(log, begin, previous=False))
            except CollectError as error:
                return error
        return [event for part in texts_read for event in log.new_events(part, at)]

    async def _request(self, log: PodLog, since: datetime, *, previous: bool) -> str:
        path = f"/api/v1/namespaces/{log.pod.namespace}/pods/{log.pod.name}/log"
        parameters = {
            "container": log.container,
            "timestamps": "true",
            "sinceTime": f"{since:%Y-%m-%dT%H:%M:%SZ}",
            "limitBytes": str(MOST_BYTES),
            **({"previous": "true"} if previous else {}),
        }
        response = await self._api.text(path, parameters)
        if response.status == _GONE:
            self._logs.pop(log.uid, None)
        if response.status in (_NOT_YET, _GONE):
            return ""
        if response.status != 200:
            message = f"the log request of pod {log.pod.name} returned HTTP {response.status}"
            hint = "the account needs get on pods/log" if response.status in (401, 403) else "check the pod's node"
            raise self._api.client.fault(message, CollectReason.HTTP_STATUS, hint)
        return response.body.decode("utf-8", errors="replace")

    async def close(self) -> None:
        """Closes all connections."""
        await self._follower.close()
