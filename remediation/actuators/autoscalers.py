"""Scales through autoscaling objects: minimum replicas of HPAs and ScaledObjects, Knative min-scale, webhooks.

Every object is read before it is changed. A field set by another controller is not changed; the error names its owner.
A number never exceeds the object's own maximum, and an equal value is not written again. A scale-out never lowers a
number. Changed objects carry the marks of the action. A dry run is a server-side dry run of the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from outrider.clock import Clock, SystemClock
from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, ActionRequest, Outcome, OutcomeStatus
from outrider.wire.http_auth import Access
from remediation.actuators.api_server import MERGE_PATCH, TIMEOUT_SECONDS, ApiServer, ConflictError, checked
from remediation.actuators.kubernetes.ownership import marks
from remediation.actuators.replica_change import check_basis, is_reached
from remediation.actuators.replica_owner import check_not_autoscaled, check_not_paused, owner_of

_TRIES = 3
_EXACT = ("deployment",)  # the number is the replicas themselves, not the least number of an autoscaler
_DEFAULT_MAXIMUM = {"scaled_object": 100}  # KEDA's default of maxReplicaCount
Json = Mapping[str, Any]


class Change(Protocol):
    """A rendered document: a merge patch for ``path``, or a webhook body if ``path`` is empty.

    ``sets`` is the path of the number in the object, ``most`` that of the field that bounds it (empty: none).
    """

    @property
    def kind(self) -> str:
        """Kind of the object."""
        ...

    @property
    def path(self) -> str:
        """Path of the object; empty for a webhook."""
        ...

    @property
    def body(self) -> Json:
        """The merge patch, or the body of the POST."""
        ...

    @property
    def sets(self) -> tuple[str, ...]:
        """Path of the number."""
        ...

    @property
    def most(self) -> tuple[str, ...]:
        """Path of its bound."""
        ...


class Webhook(Protocol):
    """Destination of a webhook's document."""

    @property
    def url(self) -> str:
        """The URL."""
        ...

    def headers(self) -> dict[str, str]:
        """Headers with the credential, read again for each call."""
        ...


Render = Callable[[Action], Sequence[tuple[Change, Webhook | None]]]


@dataclass(frozen=True, slots=True)
class _Write:
    """One sentence, and the request that is left to send; None if the object has the value already."""

    sentence: str
    request: ActionRequest | None = None


class AutoscalerActuator:
    """Performs SCALE actions of services; rejects every other kind of action."""

    def __init__(self, render: Render, url: str | None, access: Access, *, clock: Clock | None = None) -> None:
        """``render`` returns the documents of an action; ``url`` is the API server's, None without one."""
        self._render, self._url, self._access = render, (url or "").rstrip("/"), access
        self._clock = clock or SystemClock()

    def perform(self, action: Action) -> Outcome:
        """Changes every object of the service, or raises ActuationError; writes nothing if one may not be changed."""
        started = self._clock.now()
        changes = self._changes(action)
        with ApiServer(self._url, self._access) as server:
            for change, hook in changes:  # one that may not be changed blocks all of them
                self._write(server, change, hook, action)
            done = [self._applied(server, change, hook, action) for change, hook in changes]
        changed = any(was_changed for was_changed, _ in done)
        status = OutcomeStatus.DONE if changed else OutcomeStatus.ALREADY
        if action.dry_run:
            status = OutcomeStatus.DRY_RUN
        return Outcome(action.id, status, "; ".join(sentence for _, sentence in done), started, self._clock.now())

    def requests(self, action: Action) -> tuple[ActionRequest, ...]:
        """Returns the requests that ``perform`` would send now. Raises ActuationError."""
        with ApiServer(self._url, self._access) as server:
            writes = [self._write(server, change, hook, action) for change, hook in self._changes(action)]
        return tuple(write.request for write in writes if write.request is not None)

    def _changes(self, action: Action) -> Sequence[tuple[Change, Webhook | None]]:
        if action.kind is not ActionKind.SCALE:
            sentence = f"the actuator autoscalers only scales services; it does not support {action.kind.value}"
            raise ActuationError(sentence, retryable=False, hint="remove the step, or choose another actuator")
        changes = self._render(action)
        if not changes:
            sentence = f"planner.scaling.emit has no entry to scale {action.target.name}"
            raise ActuationError(sentence, retryable=False, hint="add an entry for the service")
        return changes

    def _applied(self, server: ApiServer, change: Change, hook: Webhook | None, action: Action) -> tuple[bool, str]:
        """Returns (changed, one sentence); reads again after a concurrent write."""
        for _ in range(_TRIES - 1):
            try:
                return self._sent(server, hook, action, self._write(server, change, hook, action))
            except ConflictError:
                continue
        return self._sent(server, hook, action, self._write(server, change, hook, action))

    def _sent(self, server: ApiServer, hook: Webhook | None, action: Action, write: _Write) -> tuple[bool, str]:
        """Returns (changed, one sentence)."""
        if write.request is None:
            return False, write.sentence
        if hook is not None:
            return True, write.sentence if action.dry_run else self._posted(hook, write.request, action)
        server.send(write.request, dry_run=action.dry_run)
        return True, write.sentence

    def _write(self, server: ApiServer, change: Change, hook: Webhook | None, action: Action) -> _Write:
        """The request that a document still needs. Raises ActuationError if its object must not be changed."""
        if not change.path:
            return self._webhook_write(change, hook, action)
        path, result = self._object(server, change)
        requested, bound = _at(change.body, change.sets), _at(result, change.most) if change.most else None
        bound = _DEFAULT_MAXIMUM.get(change.kind) if bound is None else bound
        number, note = int(requested), ""
        if isinstance(bound, int) and number > bound:
            number, note = bound, f" (requested {int(requested)}, bounded by {'.'.join(change.most)})"
        value: int | str = str(number) if isinstance(requested, str) else number
        current = _at(result, change.sets)
        name = path.rsplit("/", 2)[-2] + "/" + path.rsplit("/", 1)[-1]
        live, floor = _whole(current), change.kind not in _EXACT
        if is_reached(action, live, number, floor=floor):
            return _Write(f"{name}: {change.sets[-1]} is {current} already{note}")
        check_basis(action, live, f"{name}: {change.sets[-1]}", floor=floor)
        body = _with(_marked(change.body, action), change.sets, value)
        version = result.get("metadata", {}).get("resourceVersion")
        body = _with(body, ("metadata", "resourceVersion"), version)
        sentence = f"{name}: {change.sets[-1]} {current} -> {value}{note}"
        return _Write(sentence, ActionRequest("PATCH", path, body, MERGE_PATCH))

    def _object(self, server: ApiServer, change: Change) -> tuple[str, Json]:
        """Returns path and object to patch. Raises ActuationError if it belongs to another owner."""
        path, result = change.path, server.get(change.path)
        if change.kind == "knative":
            revision = _at(result, ("status", "latestReadyRevisionName"))
            if not isinstance(revision, str):
                raise ActuationError(f"{path} has no ready revision yet", retryable=True)
            path = path.rsplit("/services/", 1)[0] + f"/revisions/{revision}"
            result = server.get(path)
        elif change.kind == "deployment":
            check_not_autoscaled(server, result, path)
        elif change.kind == "scaled_object":
            check_not_paused(result, path)
        owner = owner_of(result, change.sets, controlled=change.kind != "knative")
        if owner:
            sentence = f"{path}: {'.'.join(change.sets)} belongs to {owner}"
            raise ActuationError(sentence, retryable=False, hint="configure that owner instead, see capacity emit")
        return path, result

    @staticmethod
    def _webhook_write(change: Change, hook: Webhook | None, action: Action) -> _Write:
        if hook is None:
            raise ActuationError(f"{change.kind} has no destination", retryable=False, hint="set its url")
        try:
            host = httpx.URL(hook.url).host
        except httpx.InvalidURL as error:
            raise ActuationError(f"{hook.url!r} is not a URL", retryable=False) from error
        body = {**change.body, "id": action.id}
        return _Write(f"would be posted to {host}", ActionRequest("POST", hook.url, body))

    @staticmethod
    def _posted(hook: Webhook, request: ActionRequest, action: Action) -> str:
        """Posts to another host, which gets no credentials of the API server. Returns one sentence."""
        host = httpx.URL(hook.url).host
        headers = {**hook.headers(), "Idempotency-Key": action.id}
        try:
            response = httpx.post(hook.url, json=request.body, headers=headers, timeout=TIMEOUT_SECONDS)
        except httpx.HTTPError as error:
            raise ActuationError(f"{host} cannot be reached ({type(error).__name__})", retryable=True) from error
        checked("POST", hook.url, response.status_code, response.content)
        return f"posted to {host}"


def _marked(body: Json, action: Action) -> Json:
    """The body with the labels and annotations of every object that an action changes."""
    for part, values in marks(action).items():
        for key, value in values.items():
            body = _with(body, ("metadata", part, key), value)
    return body


def _whole(value: Any) -> int | None:
    """A number of replicas, which Knative writes as text; None for a missing one."""
    text = str(value)
    return int(text) if text.isdecimal() else None


def _at(result: Json, path: Sequence[str]) -> Any:
    node: Any = result
    for part in path:
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _with(body: Json, path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy with one value set."""
    first, rest = path[0], path[1:]
    inner = body.get(first)
    return {**body, first: _with(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value}
