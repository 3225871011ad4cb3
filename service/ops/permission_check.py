"""Permissions of the account that performs actions on Kubernetes, for ``outrider doctor``."""

from __future__ import annotations

from typing import Any

from outrider.errors import ActuationError
from outrider.model import ActionKind
from remediation.actuators import autoscaler_permissions
from remediation.actuators.hook import permissions as hook_permissions
from remediation.actuators.kubernetes.permissions import DEGRADE, NEEDED, Needed, Permission, missing
from remediation.actuators.traffic import permissions as traffic_permissions
from service.config.remediation_settings import RemediationSettings
from service.config.scaling_settings import KubernetesApiSettings
from service.config.settings import Settings

_ACTING, _SCALING = "remediation.kubernetes", "planner.scaling.kubernetes"


def permissions(settings: Settings) -> dict[str, Any]:
    """Returns what each action on Kubernetes lacks; empty if no action needs an API server.

    ``error`` is not empty if an API server did not answer. The account of a row is the setting of its API server.
    """
    remediation, scaling = settings.remediation, settings.planner.scaling
    accounts: dict[str, tuple[KubernetesApiSettings, Needed]] = {
        _ACTING: (remediation.kubernetes, needed_by(remediation)),
        _SCALING: (scaling.kubernetes, needed_to_scale(settings)),
    }
    checked = [_checked(name, server, needed) for name, (server, needed) in accounts.items() if needed]
    if not checked:
        return {}
    errors, rows = [error for error, _ in checked if error], [row for _, listed in checked for row in listed]
    return {"permissions": {"error": "; ".join(dict.fromkeys(errors)), "missing": rows}}


def _checked(account: str, server: KubernetesApiSettings, needed: Needed) -> tuple[str, list[dict[str, Any]]]:
    """Returns an error, and a row for each action whose permissions the account lacks."""
    try:
        lacking = missing(*server.server(), needed, setting=f"{account}.url")
    except ActuationError as error:
        return error.message, []
    return "", [
        {
            "action": kind.value,
            "account": account,
            "permissions": [
                {
                    "verb": permission.verb,
                    "resource": permission.resource,
                    "group": permission.group,
                    "namespace": permission.namespace or None,
                }
                for permission in permissions
            ],
        }
        for kind, permissions in lacking.items()
    ]


def needed_to_scale(settings: Settings) -> dict[ActionKind, tuple[Permission, ...]]:
    """Returns the permissions of the performer autoscalers, by the objects that receive the plan."""
    if settings.remediation.performer(ActionKind.SCALE) != "autoscalers":
        return {}
    namespaces = {service.name: service.namespace for service in settings.services}
    receivers = [
        (receiver.type, receiver.namespace or namespaces.get(receiver.service) or "")
        for receiver in settings.planner.scaling.emit
    ]
    needed = autoscaler_permissions.needed(receivers)
    return {ActionKind.SCALE: needed} if needed else {}


def needed_by(remediation: RemediationSettings) -> dict[ActionKind, tuple[Permission, ...]]:
    """Returns the permissions that the configured performer of each action needs."""
    of_performer = {
        "kubernetes": NEEDED,
        "degrade": DEGRADE,
        "traffic": traffic_permissions.needed(remediation.traffic.by_service()),
    }
    result = {
        kind: needed
        for performer, by_kind in of_performer.items()
        for kind, needed in by_kind.items()
        if remediation.performer(kind) == performer
    }
    for kind, hook in remediation.hooks.items():
        if remediation.performer(kind) != "hook":
            continue
        if hook.job is not None:
            result[kind] = hook_permissions.of_job(hook.job.namespace)
        elif hook.nvsentinel is not None:
            result[kind] = hook_permissions.of_nvsentinel(kind)
        elif remediation.kubernetes.server()[0] is not None:
            result[kind] = hook_permissions.of_webhook(kind)
    return {kind: needed for kind, needed in result.items() if needed}
