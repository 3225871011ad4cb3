"""Scales through autoscaling objects: minimum replicas of HPAs and ScaledObjects, Knative min-scale, webhooks.

Every object is read before it is changed. A field set by another controller is not changed; the error names its owner.
A number never exceeds the object's own maximum, and an equal value is not written again. A dry run is a server-side
dry run of the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import httpx

from outrider.clock import Clock, SystemClock
from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, Outcome, OutcomeStatus
from outrider.wire.http_auth import Access
from remediation.actuators.api_server import FIELD_MANAGER, TIMEOUT_SECONDS, ApiServer, ConflictError, checked

_MANUAL_MANAGERS = (
    "kubectl"  # field managers with these prefixes are manual edits, which the requested plan may overwrite
)
_TRIES = 3
_AUTOSCALERS = {
    "HorizontalPodAutoscaler": "/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers",
    "ScaledObject": "/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects",
}
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


class AutoscalerActuator:
    """Performs SCALE actions of services; rejects every other kind of action."""

    def __init__(self, render: Render, url: str | None, access: Access, *, clock: Clock | None = None) -> None:
        """``render`` returns the documents of an action; ``url`` is the API server's, None without one."""
        self._render, self._url, self._access = render, (url or "").rstrip("/"), access
        self._clock = clock or SystemClock()

    def perform(self, action: Action) -> Outcome:
        """Changes every object of the service, or raises ActuationError; writes nothing if one may not be changed."""
        started = self._clock.now()
        if action.kind is not ActionKind.SCALE:
            sentence = f"the actuator autoscalers only scales services; it does not support {action.kind.value}"
            raise ActuationError(sentence, retryable=False, hint="remove the step, or choose another actuator")
        changes = self._render(action)
        if not changes:
            sentence = f"planner.scaling.emit has no entry to scale {action.target.name}"
            raise ActuationError(sentence, retryable=False, hint="add an entry for the service")
        with ApiServer(self._url, self._access) as server:
            for change, _ in changes:  # one that may not be changed blocks all of them
                self._prepared(server, change)
            done = [self._applied(server, change, hook, action) for change, hook in changes]
        changed = any(was_changed for was_changed, _ in done)
        status = OutcomeStatus.DONE if changed else OutcomeStatus.ALREADY
        if action.dry_run:
            status = OutcomeStatus.DRY_RUN
        return Outcome(action.id, status, "; ".join(sentence for _, sentence in done), started, self._clock.now())

    def _applied(self, server: ApiServer, change: Change, hook: Webhook | None, action: Action) -> tuple[bool, str]:
        """Returns (changed, one sentence); reads again after a concurrent write."""
        for _ in range(_TRIES - 1):
            try:
                return self._apply(server, change, hook, self._prepared(server, change), action)
            except ConflictError:
                continue
        return self._apply(server, change, hook, self._prepared(server, change), action)

    def _prepared(self, server: ApiServer, change: Change) -> tuple[str, Json] | None:
        """Returns path and object to patch, None for a webhook. Raises ActuationError if it must not be changed."""
        if not change.path:
            return None
        path, result = change.path, server.get(change.path)
        if change.kind == "knative":
            revision = _at(result, ("status", "latestReadyRevisionName"))
            if not isinstance(revision, str):
                raise ActuationError(f"{path} has no ready revision yet", retryable=True)
            path = path.rsplit("/services/", 1)[0] + f"/revisions/{revision}"
            result = server.get(path)
        elif change.kind == "deployment":
            self._check_not_autoscaled(server, result, path)
        owner = owner_of(result, change.sets, controlled=change.kind != "knative")
        if owner:
            sentence = f"{path}: {'.'.join(change.sets)} belongs to {owner}"
            raise ActuationError(sentence, retryable=False, hint="configure that owner instead, see capacity emit")
        return path, result

    def _check_not_autoscaled(self, server: ApiServer, result: Json, path: str) -> None:
        """Raises if an autoscaler sets the replicas of this workload."""
        meta = result.get("metadata", {})
        for kind, path_template in _AUTOSCALERS.items():
            listed = server.get(path_template.format(namespace=meta.get("namespace")), missing_is_empty=True)
            for item in listed.get("items", []):
                target = item.get("spec", {}).get("scaleTargetRef", {})
                if target.get("name") == meta.get("name") and target.get("kind", "Deployment") == "Deployment":
                    name = item["metadata"]["name"]
                    sentence = f"{path}: its replicas belong to {kind} {name}"
                    raise ActuationError(sentence, retryable=False, hint="name that object in planner.scaling.emit")

    def _apply(
        self,
        server: ApiServer,
        change: Change,
        hook: Webhook | None,
        prepared: tuple[str, Json] | None,
        action: Action,
    ) -> tuple[bool, str]:
        """Returns (changed, one sentence)."""
        if prepared is None:
            return self._post(change, hook, action)
        path, result = prepared
        requested, bound = _at(change.body, change.sets), _at(result, change.most) if change.most else None
        bound = _DEFAULT_MAXIMUM.get(change.kind) if bound is None else bound
        number, note = int(requested), ""
        if isinstance(bound, int) and number > bound:
            number, note = bound, f" (requested {int(requested)}, bounded by {'.'.join(change.most)})"
        value: int | str = str(number) if isinstance(requested, str) else number
        current = _at(result, change.sets)
        name = path.rsplit("/", 2)[-2] + "/" + path.rsplit("/", 1)[-1]
        if current == value:
            return False, f"{name}: {change.sets[-1]} is {value} already{note}"
        body = _with(change.body, change.sets, value)
        version = result.get("metadata", {}).get("resourceVersion")
        body = _with(body, ("metadata", "resourceVersion"), version)
        server.patch(path, body, dry_run=action.dry_run)
        return True, f"{name}: {change.sets[-1]} {current} -> {value}{note}"

    def _post(self, change: Change, hook: Webhook | None, action: Action) -> tuple[bool, str]:
        if hook is None:
            raise ActuationError(f"{change.kind} has no destination", retryable=False, hint="set its url")
        if action.dry_run:
            return True, f"would be posted to {httpx.URL(hook.url).host}"
        headers = {**hook.headers(), "Idempotency-Key": action.id}
        body = {**change.body, "id": action.id}
        try:  # the API server's credentials are not sent to other hosts
            host = httpx.URL(hook.url).host
            response = httpx.post(hook.url, json=body, headers=headers, timeout=TIMEOUT_SECONDS)
        except httpx.InvalidURL as error:
            raise ActuationError(f"{hook.url!r} is not a URL", retryable=False) from error
        except httpx.HTTPError as error:
            raise ActuationError(f"{host} cannot be reached ({type(error).__name__})", retryable=True) from error
        checked("POST", hook.url, response.status_code, response.content)
        return True, f"posted to {host}"


def owner_of(result: Json, field: Sequence[str], *, controlled: bool = True) -> str:
    """The other owner of a field: its controller, or another program's field manager; else empty.

    ``controlled`` False: an owner of the object is acceptable, as for Knative revisions.
    """
    meta = result.get("metadata", {})
    for owner in meta.get("ownerReferences", []) if controlled else []:
        if owner.get("controller"):
            return f"{owner.get('kind')} {owner.get('name')}"
    for entry in meta.get("managedFields", []):
        manager = str(entry.get("manager", ""))
        if manager == FIELD_MANAGER or manager.startswith(_MANUAL_MANAGERS):
            continue
        node: Any = entry.get("fieldsV1", {})
        for part in field:
            node = node.get(f"f:{part}") if isinstance(node, Mapping) else None
        if node is not None:
            return f"field manager {manager}"
    return ""


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
