"""A drill on a namespace of a real cluster: planned, injected, followed, restored.

The journal is a ConfigMap of the namespace, written before the first change and deleted after the last one is undone.
It allows one drill at a time, and lets another process restore what a killed one left: the kill guard does so at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outrider.clock import Clock, SystemClock, parse_rfc3339, rfc3339
from outrider.errors import ActuationError, OutriderError, UnavailableError, UsageError
from outrider.model import ActionRequest
from outrider.wire.http_auth import Access
from remediation.actuators.api_server import ApiServer, ConflictError
from service.drills import remote_drill
from service.drills.cluster import changes
from service.drills.cluster.changes import Create, Edit, Journal, Json
from service.drills.cluster.injections import Injection, Scene, injector_of, is_ready, open_scene
from service.drills.cluster.kill_guard import kill_guard
from service.drills.interrupts import DeferredSignals

JOURNAL = "outrider-drill"
SETTING = "drill.kubernetes.url"
_RECORD = "record"
_HINT = "grant its account the verb, see deploy/rbac-drill.yaml"
_RESTORE = "outrider drill run FAULT --kubernetes {} --restore"
_TRIES, _PAUSE_SECONDS = 10, 3.0
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Order:
    """A requested drill. ``workload`` None: the only Deployment of the namespace."""

    fault: str
    namespace: str
    lasts: timedelta
    seed: int = 0
    workload: str | None = None


@dataclass(frozen=True, slots=True)
class _Prepared:
    order: Order
    scene: Scene
    injection: Injection
    journal: Journal

    def requests(self) -> list[ActionRequest]:
        """Every request of the injection, in order, the journal first."""
        requests = [_journal_request(self.order.namespace, self.journal)]
        for change in self.injection.changes:
            current = self.scene.server.get(change.path) if isinstance(change, Edit) else {}
            requests += changes.apply_requests(change, self.journal, current)
        return requests


class ClusterDrill:
    """Drills through one account of one API server."""

    def __init__(
        self, url: str | None, access: Access, *, longest: timedelta, clock: Clock | None = None, guarded: bool = True
    ) -> None:
        """``longest`` bounds every drill. ``guarded``: a second process restores after a kill."""
        self._url, self._access, self._longest = (url or "").rstrip("/"), access, longest
        self._clock, self._guarded = clock or SystemClock(), guarded

    def plan(self, order: Order) -> dict[str, Any]:
        """Returns the exact requests, checked by the API server in a dry run. Changes nothing.

        Raises UsageError for a drill that a guard refuses, UnavailableError without a server.
        """
        with self._server() as server, _reported():
            prepared = self._prepare(server, order)
            requests = prepared.requests()
            for request in requests:
                server.send(request, dry_run=True)
        return {
            **_described(prepared, order),
            "dry_run": True,
            "requests": [{"method": item.method, "url": item.url, "body": item.body} for item in requests],
        }

    def run(
        self,
        order: Order,
        *,
        api: remote_drill.Api,
        cluster: str,
        progress: Progress,
        sleep: Callable[[float], None] = time.sleep,
    ) -> dict[str, Any]:
        """Injects a fault, waits, restores, and returns the result that the platform at ``api`` earned.

        The platform learns time and cluster of the drill first, so that it marks its messages. An interrupt restores
        everything. Raises as ``plan`` does.
        """
        with self._server() as server, DeferredSignals() as signals, self._guard(order.namespace), _reported():
            prepared = self._prepare(server, order)
            server.send(_journal_request(order.namespace, prepared.journal), dry_run=False)
            announced: dict[str, Any] = {}
            try:
                announced = api.post("/drills/announced", _announcement(prepared, order, cluster))
                self._inject(server, prepared)
                signals.release()
                recovered = self._follow(server, prepared, api, progress, sleep)
                signals.defer()
            except BaseException as error:
                signals.defer()
                self._restore_at_last(server, order.namespace, sleep)
                if announced:
                    with suppress(OutriderError):  # already over, or the platform is away
                        api.post(f"/drills/{prepared.journal.id}/stop")
                if isinstance(error, KeyboardInterrupt):
                    raise KeyboardInterrupt(f"the drill {prepared.journal.id} ended early; all is restored") from error
                raise
            restored = self._restore_at_last(server, order.namespace, sleep)
        judged = api.get(f"/drills/{prepared.journal.id}", **recovered)
        return {**remote_drill.result(judged, api, order.seed), "namespace": order.namespace, "restored": restored}

    def restore(self, namespace: str) -> dict[str, Any]:
        """Undoes what an interrupted drill left in a namespace. Raises as ``plan`` does."""
        with self._server() as server, _reported():
            return {"namespace": namespace, "restored": self._restore(server, namespace)}

    def _restore_at_last(self, server: ApiServer, namespace: str, sleep: Callable[[float], None]) -> list[str]:
        """Restores, also if the API server is away for a moment. Raises UnavailableError if it stays away."""
        for _ in range(_TRIES - 1):
            with suppress(ActuationError):
                return self._restore(server, namespace)
            sleep(_PAUSE_SECONDS)
        try:
            return self._restore(server, namespace)
        except ActuationError as error:
            message = f"the drill in {namespace} could not be undone: {error.message}"
            raise UnavailableError(message, hint=_RESTORE.format(namespace)) from error

    def _guard(self, namespace: str) -> AbstractContextManager[None]:
        return kill_guard(self._url, self._access, namespace) if self._guarded else nullcontext()

    def _server(self) -> ApiServer:
        return ApiServer(self._url, self._access, setting=SETTING)

    def _prepare(self, server: ApiServer, order: Order) -> _Prepared:
        if not timedelta(0) < order.lasts <= self._longest:
            seconds = self._longest.total_seconds()
            raise UsageError(f"a drill lasts at most {seconds:g} s here", hint="see drill.longest")
        injector = injector_of(order.fault)
        now = self._clock.now()
        drill_id = f"k8s-{order.fault}-{int(now.timestamp())}"
        scene = open_scene(server, order.namespace, order.workload, order.seed, drill_id)
        if server.get(_journal_path(order.namespace), missing_is_empty=True):
            raise _busy(order.namespace)
        injection = injector(scene)
        journal = Journal(drill_id, order.fault, rfc3339(now + order.lasts), injection.changes)
        return _Prepared(order, scene, injection, journal)

    @staticmethod
    def _inject(server: ApiServer, prepared: _Prepared) -> None:
        for change in prepared.injection.changes:
            current = server.get(change.path) if isinstance(change, Edit) else {}
            for request in changes.apply_requests(change, prepared.journal, current):
                server.send(request, dry_run=False)

    def _follow(
        self,
        server: ApiServer,
        prepared: _Prepared,
        api: remote_drill.Api,
        progress: Progress,
        sleep: Callable[[float], None],
    ) -> dict[str, str]:
        """Waits for the end. Returns when as many healthy pods served as before, and which start ended it; else {}."""
        start, end = self._clock.now(), parse_rfc3339(prepared.journal.until)
        recovered, broken = dict[str, str](), False
        while (now := self._clock.now()) < end and not self._stopped(api, prepared.journal.id):
            with suppress(ActuationError):  # the API server may be away; the drill ends in time all the same
                self._hold(server, prepared)
                healthy = _healthy_pods(server, prepared)
                broken = broken or len(healthy) < len(prepared.scene.pods)
                if broken and not recovered and len(healthy) >= len(prepared.scene.pods):
                    recovered = {"recovered_at": rfc3339(now), **_new_pod(healthy, start)}
            progress("wait", min(1.0, (now - start) / (end - start)))
            sleep(remote_drill.POLL_SECONDS)
        return recovered

    @staticmethod
    def _stopped(api: remote_drill.Api, drill_id: str) -> bool:
        try:
            return bool(api.get(f"/drills/{drill_id}")["stopped"])
        except UnavailableError:
            return False

    @staticmethod
    def _hold(server: ApiServer, prepared: _Prepared) -> None:
        for change in prepared.injection.changes:
            if isinstance(change, Edit) and change.holds:
                for request in changes.hold_requests(change, server.get(change.path, missing_is_empty=True)):
                    server.send(request, dry_run=False)

    @staticmethod
    def _restore(server: ApiServer, namespace: str) -> list[str]:
        """Undoes the journal of a namespace, newest change first; returns the paths that were restored."""
        path = _journal_path(namespace)
        found = server.get(path, missing_is_empty=True)
        if not found:
            return []
        journal = Journal.parse(found["data"][_RECORD])
        restored = []
        for change in reversed(journal.changes):
            current = server.get(change.path, missing_is_empty=True)
            requests = changes.undo_requests(change, current) if _is_ours(change, current, journal) else []
            for request in requests:
                server.send(request, dry_run=False)
            restored += [change.path] if requests else []
        server.send(changes.deletion(path, found), dry_run=False)
        return restored


def _is_ours(change: changes.Change, current: Mapping[str, Any], journal: Journal) -> bool:
    """True if this drill changed the object: another one may have taken its name meanwhile."""
    note = str((current.get("metadata", {}).get("annotations") or {}).get(changes.DRILL, ""))
    if isinstance(change, Create):
        return note == journal.id
    return journal.id in note


def _healthy_pods(server: ApiServer, prepared: _Prepared) -> list[Json]:
    """Ready pods of the workload, except the one that the drill broke."""
    namespace, selector = prepared.order.namespace, prepared.scene.workload["spec"]["selector"]["matchLabels"]
    query = (("labelSelector", ",".join(f"{key}={value}" for key, value in sorted(selector.items()))),)
    pods = server.get(f"/api/v1/namespaces/{namespace}/pods", query=query).get("items", [])
    nodes = {prepared.injection.name} if not prepared.injection.of_namespace else set[str]()
    return [
        pod
        for pod in pods
        if is_ready(pod)
        and pod["metadata"]["uid"] != prepared.injection.victim
        and pod["spec"].get("nodeName") not in nodes
    ]


def _new_pod(healthy: Sequence[Json], start: datetime) -> dict[str, str]:
    """Returns the creation of the newest pod, if it was created during the drill.

    The API server truncates it to seconds: the end of that second is returned.
    """
    times = [parse_rfc3339(str(pod["metadata"]["creationTimestamp"])) + timedelta(seconds=1) for pod in healthy]
    newest = max(times, default=start)
    return {"pod_created_at": rfc3339(newest)} if newest > start else {}


def _announcement(prepared: _Prepared, order: Order, cluster: str) -> dict[str, Any]:
    injection = prepared.injection
    namespace = order.namespace if injection.of_namespace else None
    entity = {"cluster": cluster, "kind": injection.kind.value, "namespace": namespace, "name": injection.name}
    seconds = order.lasts.total_seconds()
    return {"id": prepared.journal.id, "fault": order.fault, "entity": entity, "seconds": seconds, "seed": order.seed}


def _described(prepared: _Prepared, order: Order) -> dict[str, Any]:
    return {
        "id": prepared.journal.id,
        "fault": order.fault,
        "namespace": order.namespace,
        "entity": f"{prepared.injection.kind.value}/{prepared.injection.name}",
        "seconds": order.lasts.total_seconds(),
    }


def _journal_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps/{JOURNAL}"


def _journal_request(namespace: str, journal: Journal) -> ActionRequest:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": JOURNAL, "annotations": {changes.DRILL: journal.id}},
        "data": {_RECORD: journal.text()},
    }
    return ActionRequest("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)


def _busy(namespace: str) -> UsageError:
    hint = f"if it was interrupted: {_RESTORE.format(namespace)}"
    return UsageError(f"a drill runs in {namespace}, or was interrupted there", hint=hint)


@contextmanager
def _reported() -> Iterator[None]:
    """Turns errors of the API server into those of a command: UsageError for a refusal, else UnavailableError."""
    try:
        yield
    except ConflictError as error:
        raise UsageError(error.message, hint="another drill or user changed the object: try again") from error
    except ActuationError as error:
        hint = _HINT if error.status in (401, 403) else error.hint
        failure = UnavailableError if error.status is None else UsageError
        raise failure(error.message, hint=hint) from error
