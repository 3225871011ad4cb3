"""Logs of model servers as events, read from the Kubernetes API pod by pod.

Of the pods that ask for an accelerator, or of those a selector names, what their containers wrote since
the last reading is matched against ``engine_log.yaml``. When a container has restarted in between, the log
of the one before is read too: the last words of a process say most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from collectors.events.unresolved_event import FIRST_LOOK, UnresolvedEvent
from collectors.kubernetes.api import Json, KubeApi, items, mapping, text
from collectors.kubernetes.objects import PODS, News
from collectors.kubernetes.watch import Follower, SharedWatches
from collectors.logs.matcher import LogMatcher, Origin
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef

SOURCE = "engine_log"
MOST_BYTES = 1024 * 1024  # of one pod in one reading; a flood is cut off
AT_ONCE = 16
_NOT_YET, _GONE = 400, 404  # no container has started; there is no such pod any more
_ACCELERATORS = ("gpu", "npu", "ascend", "gaudi", "neuron", "tpu")


@dataclass(slots=True)
class PodLog:
    """What is known of one pod's log between two readings. ``last`` is the instant of the newest line."""

    pod: EntityRef
    uid: str
    container: str
    restarts: int
    read_restarts: int = 0
    last: datetime | None = None
    at_last: set[str] = field(default_factory=set)
    lines: LogMatcher = field(default_factory=lambda: LogMatcher(SOURCE))

    def new_events(self, log: str, at: datetime) -> Iterator[UnresolvedEvent]:
        """Lines that mean something, each burst of a code once; ``at`` dates lines without a time of their own."""
        origin = Origin(self.pod, self.uid, self.container)
        for when, line in stamped(log):
            if when is None or self._is_new(when, line):
                yield from self.lines.take(origin, when, line, at)

    def _is_new(self, when: datetime, line: str) -> bool:
        """The API answers from a whole second on, so that the newest lines come again."""
        if self.last is not None and (when < self.last or (when == self.last and line in self.at_last)):
            return False
        if when != self.last:
            self.last, self.at_last = when, set()
        self.at_last.add(line)
        return True


def stamped(log: str) -> Iterator[tuple[datetime | None, str]]:
    """Lines with the time the kubelet wrote before each; None where there is none."""
    for whole in log.splitlines():
        stamp, _, line = whole.partition(" ")
        try:
            when = datetime.fromisoformat(stamp)
        except ValueError:
            yield None, whole
            continue
        yield (when.astimezone(UTC), line) if when.tzinfo is not None else (None, whole)


def pod_log(found: Json, cluster: str, container: str = "", *, any_pod: bool = False) -> PodLog | None:
    """The log to read of a pod object; None for a pod that is none of ours or has not started.

    ``container`` is read where it is named, else the one that asks for an accelerator, else the first
    when ``any_pod``.
    """
    meta, spec, status = (mapping(found.get(part)) for part in ("metadata", "spec", "status"))
    name, namespace, uid = (text(meta.get(part)) for part in ("name", "namespace", "uid"))
    offered = items(spec.get("containers"))
    chosen = [one for one in offered if (text(one.get("name")) == container if container else _accelerated(one))]
    chosen = chosen or (offered if any_pod and not container else [])
    if not (name and namespace and uid and chosen):
        return None
    reading = text(chosen[0].get("name"))
    state = next((one for one in items(status.get("containerStatuses")) if text(one.get("name")) == reading), None)
    if state is None or not (mapping(state.get("state")).keys() & {"running", "terminated"} or state.get("lastState")):
        return None
    restarts = state.get("restartCount")
    count = restarts if isinstance(restarts, int) and restarts > 0 else 0
    return PodLog(EntityRef(cluster, EntityKind.POD, namespace, name), uid, reading, count)


def _accelerated(container: Json) -> bool:
    resources = mapping(container.get("resources"))
    asked = {**mapping(resources.get("limits")), **mapping(resources.get("requests"))}
    return any(word in name.lower() for name in asked for word in _ACCELERATORS)


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
        """Without ``label_selector`` pods that ask for an accelerator are read."""
        self.name = name
        doors = SharedWatches.of(api)
        self._api, self._cluster = doors.api, cluster
        self._container, self._any = container, bool(label_selector or container)
        chosen = (("labelSelector", label_selector),) if label_selector else ()
        self._follower = Follower(doors, [replace(PODS, optional=False, chosen=chosen)], namespaces)
        self.lines = LogMatcher(SOURCE)
        self._logs: dict[str, PodLog] = {}

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> tuple[list[UnresolvedEvent], list[CollectError]]:
        """What the engines said since the last reading; at the first one, in the last ``FIRST_LOOK``."""
        del nodes
        told, faults = await self._follower.read(at)
        errors = [one.error for one in faults]
        for news in told:
            self._note(news)
        found: list[UnresolvedEvent] = []
        room = asyncio.Semaphore(AT_ONCE)
        for answer in await asyncio.gather(*(self._one(log, at, room) for log in list(self._logs.values()))):
            if isinstance(answer, CollectError):
                errors.append(answer)
            else:
                found.extend(answer)
        return found, errors

    def _note(self, news: News) -> None:
        if news.whole:
            listed = {text(mapping(seen.found.get("metadata")).get("uid")) for seen in news.seen}
            for uid in [uid for uid, log in self._logs.items() if uid not in listed and _is_in(log, news.namespace)]:
                del self._logs[uid]
        for seen in news.seen:
            uid = text(mapping(seen.found.get("metadata")).get("uid"))
            log = pod_log(seen.found, self._cluster, self._container, any_pod=self._any)
            if seen.what == "DELETED" or log is None:
                self._logs.pop(uid, None)
            elif uid in self._logs:
                self._logs[uid].restarts = log.restarts
            else:
                log.lines = self.lines
                self._logs[uid] = log

    async def _one(self, log: PodLog, at: datetime, room: asyncio.Semaphore) -> list[UnresolvedEvent] | CollectError:
        async with room:
            try:
                begin = log.last or at - FIRST_LOOK
                texts_read = [await self._ask(log, begin, previous=True)] if log.restarts > log.read_restarts else []
                log.read_restarts = log.restarts
                texts_read.append(await self._ask(log, begin, previous=False))
            except CollectError as error:
                return error
        return [one for part in texts_read for one in log.new_events(part, at)]

    async def _ask(self, log: PodLog, since: datetime, *, previous: bool) -> str:
        path = f"/api/v1/namespaces/{log.pod.namespace}/pods/{log.pod.name}/log"
        asked = {
            "container": log.container,
            "timestamps": "true",
            "sinceTime": f"{since:%Y-%m-%dT%H:%M:%SZ}",
            "limitBytes": str(MOST_BYTES),
            **({"previous": "true"} if previous else {}),
        }
        answer = await self._api.text(path, asked)
        if answer.status == _GONE:
            self._logs.pop(log.uid, None)
        if answer.status in (_NOT_YET, _GONE):
            return ""
        if answer.status != 200:
            said = f"the log of pod {log.pod.name} was answered HTTP {answer.status}"
            hint = "the account needs get on pods/log" if answer.status in (401, 403) else "look at the pod's node"
            raise self._api.client.fault(said, CollectReason.HTTP_STATUS, hint)
        return answer.body.decode("utf-8", errors="replace")

    async def close(self) -> None:
        """Close every connection."""
        await self._follower.close()
