"""Permissions of the account that performs actions on Kubernetes, for ``outrider doctor``."""

from __future__ import annotations

from typing import Any

from outrider.errors import ActuationError
from remediation.actuators.kubernetes.permissions import missing
from service.config.settings import Settings


_ON_KUBERNETES = frozenset({"kubernetes", "degrade"})


def permissions(settings: Settings) -> dict[str, Any]:
    """Returns what each action of a performer on Kubernetes lacks; empty if no action uses one.

    ``error`` is not empty if the API server did not answer.
    """
    remediation = settings.remediation
    if _ON_KUBERNETES.isdisjoint((remediation.actuator, *remediation.actuators.values())):
        return {}
    try:
        lacking = missing(*remediation.kubernetes.server())
    except ActuationError as error:
        return {"permissions": {"error": error.message, "missing": []}}
    rows = [
        {
            "action": kind.value,
            "permissions": [
                {"verb": permission.verb, "resource": permission.resource, "group": permission.group}
                for permission in permissions
            ],
        }
        for kind, permissions in lacking.items()
        if remediation.performer(kind) in _ON_KUBERNETES
    ]
    return {"permissions": {"error": "", "missing": rows}}
