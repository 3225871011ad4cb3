"""Publishes the degrade level of a service: a ConfigMap, offline Deployments, and a webhook to the gateway.

The ConfigMap ``outrider-degrade-<service>`` lies in the service's namespace. Its key ``level`` is the number, 0 for
normal service; ``degrade.json`` has the content of the level. The ConfigMap stays at level 0, because mounted volumes
and watches follow changes.
"""

from __future__ import annotations

import json
import re
from typing import Any

from outrider.clock import Clock, SystemClock, rfc3339
from outrider.model import Action, ActionKind, ActionRequest, Outcome, OutcomeStatus
from outrider.wire.http_auth import Access
from remediation.actuators.api_server import MERGE_PATCH, ApiServer, ConflictError
from remediation.actuators.degrade import offline_work
from remediation.actuators.degrade.webhook import GatewayWebhook
from remediation.actuators.kubernetes.change import Change, refused
from remediation.actuators.kubernetes.ownership import is_ours, marks

SETTING = "remediation.kubernetes.url"
KINDS = (ActionKind.DEGRADE_SERVICE, ActionKind.RESTORE_SERVICE)
PREFIX = "outrider-degrade-"
_CONTENT = ("reject", "defer", "max_prompt_tokens", "max_prompt_exempt", "max_output_tokens", "model")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9.-]+")
_TRIES = 3  # reads again after a concurrent write


class DegradeActuator:
    """Idempotent: every attempt reads first and sends only what is left. The webhook deduplicates by action id."""

    def __init__(
        self,
        url: str | None,
        access: Access,
        *,
        webhook: GatewayWebhook | None = None,
        config_map: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """``url`` is the API server's, None without one."""
        self._url, self._access, self._webhook = (url or "").rstrip("/"), access, webhook
        self._config_map, self._clock = config_map, clock or SystemClock()

    def perform(self, action: Action) -> Outcome:
        """Publishes the level, or raises ActuationError. A dry run is the API server's own, without the webhook."""
        self._check(action)
        started = self._clock.now()
        change = self._applied(action)
        if self._webhook is not None and not action.dry_run:
            self._webhook.post(action.id, document(action))
        changed = bool(change.requests) or self._webhook is not None
        status = OutcomeStatus.DONE if changed else OutcomeStatus.ALREADY
        status = OutcomeStatus.DRY_RUN if action.dry_run else status
        return Outcome(action.id, status, change.detail, started, self._clock.now())

    def requests(self, action: Action) -> tuple[ActionRequest, ...]:
        """Returns the requests that ``perform`` would send now. Raises ActuationError."""
        self._check(action)
        posted = () if self._webhook is None else (ActionRequest("POST", self._webhook.url, document(action)),)
        if not self._uses_cluster(action):
            return posted
        with ApiServer(self._url, self._access, setting=SETTING) as server:
            return (*self._change(server, action).requests, *posted)

    def _check(self, action: Action) -> None:
        if action.kind not in KINDS:
            hint = f"name another actuator in remediation.actuators.{action.kind.value}"
            raise refused(f"the actuator degrade does not support {action.kind.value}", hint)
        if not self._uses_cluster(action) and self._webhook is None:
            hint = "set remediation.degrade.webhook, or config_map: true"
            raise refused("nothing would receive the degrade level", hint)

    def _uses_cluster(self, action: Action) -> bool:
        return self._config_map or bool(action.params.get("pause"))

    def _applied(self, action: Action) -> Change:
        if not self._uses_cluster(action):
            return Change(_sentence(action))
        with ApiServer(self._url, self._access, setting=SETTING) as server:
            for _ in range(_TRIES - 1):
                try:
                    return self._sent(server, action)
                except ConflictError:
                    continue
            return self._sent(server, action)

    def _sent(self, server: ApiServer, action: Action) -> Change:
        change = self._change(server, action)
        for request in change.requests:
            server.send(request, dry_run=action.dry_run)
        return change

    def _change(self, server: ApiServer, action: Action) -> Change:
        published = _published(server, action) if self._config_map else Change(_sentence(action))
        parts = [published, *offline_work.changes(server, action)]
        return Change(
            "; ".join(part.detail for part in parts), tuple(request for part in parts for request in part.requests)
        )


def document(action: Action) -> dict[str, Any]:
    """The level and its content, as gateways read it."""
    return {
        "cluster": action.target.cluster,
        "namespace": action.target.namespace or "default",
        "service": action.target.name,
        "level": int(action.params["level"]),
        "name": str(action.params.get("name", "")),
        **{key: action.params.get(key) for key in _CONTENT},
        "since": rfc3339(action.decided_at),
        "action": action.id,
    }


def config_map_name(service: str) -> str:
    """The name of a service's ConfigMap, valid in Kubernetes."""
    return (PREFIX + _NOT_IN_NAMES.sub("-", service.lower()))[:253].strip("-.")


def _published(server: ApiServer, action: Action) -> Change:
    folder = f"/api/v1/namespaces/{action.target.namespace or 'default'}/configmaps"
    name = config_map_name(action.target.name)
    data = {"level": str(action.params["level"]), "degrade.json": json.dumps(document(action), sort_keys=True)}
    present = server.get(f"{folder}/{name}", missing_is_empty=True)
    sentence = f"ConfigMap {name}: {_sentence(action)}"
    if not present and not action.params["level"]:
        return Change(f"there is no ConfigMap {name}, so no level")
    if not present:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **marks(action)}, "data": data}
        return Change(sentence, (ActionRequest("POST", folder, body),))
    if not is_ours(present):
        raise refused(f"ConfigMap {name} exists and is not ours", "delete it, or label it outrider.io/owner=outrider")
    if present.get("data") == data:
        return Change(f"ConfigMap {name} has this level already")
    version = {"resourceVersion": present["metadata"].get("resourceVersion")}
    body = {"metadata": {**marks(action), **version}, "data": data}
    return Change(sentence, (ActionRequest("PATCH", f"{folder}/{name}", body, MERGE_PATCH),))


def _sentence(action: Action) -> str:
    return f"{action.target.name} is at level {action.params['level']} ({action.params.get('name', '')})"
