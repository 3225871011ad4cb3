"""Hook as a custom resource of NVSentinel's janitor, which resets GPUs and reboots nodes.

Group ``janitor.dgxc.nvidia.com``, version ``v1alpha1``, both cluster-scoped (NVIDIA/NVSentinel,
``distros/kubernetes/nvsentinel/charts/janitor/crds``):

- ``RebootNode``: ``spec.nodeName``, ``spec.force``. ``status.completionTime`` and the condition ``NodeReady``: True
  after success, False with the reason of a failure (``janitor/pkg/controller/rebootnode_controller.go``).
- ``GPUReset``: ``spec.nodeName``, ``spec.selector.uuids``; without a selector all devices. ``status.completionTime``
  and the condition ``Complete``, which is True at every end; the reason ``GPUResetSucceeded`` marks success
  (``janitor/pkg/controller/gpureset_controller.go``).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outrider.model import Action, ActionKind, ActionRequest, OutcomeStatus
from outrider.wire.http_auth import Access
from remediation.actuators.api_server import ApiServer
from remediation.actuators.hook.actuator import Progress, gpus_of, node_of
from remediation.actuators.hook.node_check import check_stoppable
from remediation.actuators.kubernetes.actuator import SETTING
from remediation.actuators.kubernetes.change import refused
from remediation.actuators.kubernetes.ownership import Json, marks, performed_by

GROUP = "janitor.dgxc.nvidia.com"
_API_VERSION = f"{GROUP}/v1alpha1"
_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of the janitor. ``condition`` is its last condition, ``success`` the reason at success."""

    kind: str
    plural: str
    condition: str
    success: str


RESOURCES = {
    ActionKind.REBOOT_NODE: Resource("RebootNode", "rebootnodes", "NodeReady", "Succeeded"),
    ActionKind.RESET_GPU: Resource("GPUReset", "gpuresets", "Complete", "GPUResetSucceeded"),
}


class NvsentinelHook:
    """Creates a custom resource for an action and follows its status."""

    def __init__(self, url: str | None, access: Access, *, force: bool = False) -> None:
        """``url`` is the API server's, None without one; ``force`` is that of a reboot."""
        self._url, self._access, self._force = (url or "").rstrip("/"), access, force

    def attempt(self, action: Action, now: datetime) -> Progress:
        """Creates the resource, or reads its status. Raises ActuationError."""
        del now
        resource = _resource(action)
        with ApiServer(self._url, self._access, setting=SETTING) as server:
            result = server.get(_path(action), missing_is_empty=True)
            if result:
                return _followed(action, resource, result)
            creation = self._creation(action)
            check_stoppable(server, action)
            server.send(creation, dry_run=action.dry_run)
        name = f"{resource.kind} {_name(action)}"
        if action.dry_run:
            return Progress(OutcomeStatus.DRY_RUN, f"would create the {name} for {node_of(action)}")
        return Progress(OutcomeStatus.IN_PROGRESS, f"the {name} waits for NVSentinel")

    def requests(self, action: Action, now: datetime) -> tuple[ActionRequest, ...]:
        """Returns the creation of the resource, nothing if it exists. Raises ActuationError."""
        del now
        with ApiServer(self._url, self._access, setting=SETTING) as server:
            known = server.get(_path(action), missing_is_empty=True)
        return () if known else (self._creation(action),)

    def _creation(self, action: Action) -> ActionRequest:
        resource = _resource(action)
        spec: dict[str, Any] = {"nodeName": node_of(action)}
        if action.kind is ActionKind.REBOOT_NODE:
            spec["force"] = self._force
        elif gpus_of(action):
            spec["selector"] = {"uuids": list(_uuids(action))}
        body = {
            "apiVersion": _API_VERSION,
            "kind": resource.kind,
            "metadata": {"name": _name(action), **marks(action)},
            "spec": spec,
        }
        return ActionRequest("POST", f"/apis/{_API_VERSION}/{resource.plural}", body)


def _resource(action: Action) -> Resource:
    resource = RESOURCES.get(action.kind)
    if resource is None:
        raise refused(f"NVSentinel has no custom resource for {action.kind.value}", "configure a job or a webhook")
    return resource


def _uuids(action: Action) -> tuple[str, ...]:
    """The UUIDs. Raises ActuationError for another form, which the API server would refuse."""
    for gpu in gpus_of(action):
        if not _UUID.fullmatch(gpu):
            raise refused(f"{gpu!r} is not a GPU UUID", "NVSentinel resets devices by UUID, or all of a node")
    return gpus_of(action)


def _name(action: Action) -> str:
    digest = hashlib.sha256(action.id.encode()).hexdigest()[:16]
    return f"outrider-{digest}"


def _path(action: Action) -> str:
    return f"/apis/{_API_VERSION}/{_resource(action).plural}/{_name(action)}"


def _followed(action: Action, resource: Resource, result: Json) -> Progress:
    name = f"{resource.kind} {_name(action)}"
    if performed_by(result) != action.id:
        raise refused(f"the {name} belongs to another action", "delete it")
    if action.dry_run:
        return Progress(OutcomeStatus.DRY_RUN, f"the {name} exists already")
    status = result.get("status") or {}
    conditions = status.get("conditions") or ()
    last: Json = next((condition for condition in conditions if condition.get("type") == resource.condition), {})
    text = f"{last.get('reason', '')} {last.get('message', '')}".strip()
    if not status.get("completionTime"):
        return Progress(OutcomeStatus.IN_PROGRESS, f"the {name} is in progress" + (f": {text}" if text else ""))
    done = last.get("status") == "True" and last.get("reason") == resource.success
    detail = text or f"it has no condition {resource.condition}"
    return Progress(OutcomeStatus.DONE if done else OutcomeStatus.FAILED, f"{name}: {detail}")
