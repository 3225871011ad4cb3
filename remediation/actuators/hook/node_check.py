"""Checks of a node before a hook begins: actions that stop its pods need a cordon, a Job needs its kubelet."""

from __future__ import annotations

from typing import Any

from outrider.model import Action
from outrider.wire.http_auth import Access
from remediation.actuators.api_server import ApiServer
from remediation.actuators.hook.actuator import STOPS_PODS, node_of
from remediation.actuators.kubernetes.actuator import SETTING
from remediation.actuators.kubernetes.change import refused
from remediation.actuators.kubernetes.ownership import Json


class CordonCheck:
    """Reads the node of an action from the API server, for hooks that do not read it themselves."""

    def __init__(self, url: str | None, access: Access) -> None:
        """``url`` is the API server's, None without one."""
        self._url, self._access = (url or "").rstrip("/"), access

    def __call__(self, action: Action) -> None:
        """Raises ActuationError for a reset or reboot of a node that is not cordoned."""
        with ApiServer(self._url, self._access, setting=SETTING) as server:
            check_stoppable(server, action)


def check_stoppable(server: ApiServer, action: Action) -> None:
    """Reads the node of a reset or reboot. Raises ActuationError if it is not cordoned."""
    if action.kind in STOPS_PODS and not action.dry_run:
        check_cordoned(action, read_node(server, action))


def read_node(server: ApiServer, action: Action) -> dict[str, Any]:
    """Returns the node of an action. Raises ActuationError if it does not exist."""
    name = node_of(action)
    node = server.get(f"/api/v1/nodes/{name}", missing_is_empty=True)
    if not node:
        raise refused(f"node {name} no longer exists")
    return node


def check_cordoned(action: Action, node: Json) -> None:
    """Raises ActuationError if pods could still be scheduled on a node that is about to stop them.

    A dry run may come before the cordon.
    """
    if action.kind in STOPS_PODS and not action.dry_run and not node.get("spec", {}).get("unschedulable"):
        raise refused(f"node {node_of(action)} is not cordoned", "cordon and drain it in an earlier step")


def check_reachable(action: Action, node: Json) -> None:
    """Raises ActuationError if the control plane has lost the node: its kubelet starts no pod."""
    if ready_status(node) == "Unknown":
        sentence = f"node {node_of(action)} is unreachable, so no Job can run on it"
        raise refused(sentence, f"configure a webhook or nvsentinel in remediation.hooks.{action.kind.value}")


def ready_status(node: Json) -> str:
    """Returns ``True``, ``False`` or ``Unknown``; empty for a node without the condition Ready."""
    conditions = node.get("status", {}).get("conditions") or ()
    return next((str(entry.get("status")) for entry in conditions if entry.get("type") == "Ready"), "")
