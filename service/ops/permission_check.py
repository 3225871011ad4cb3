"""Permissions of the account that performs actions on Kubernetes, for ``outrider doctor``."""

from __future__ import annotations

from typing import Any

from outrider.errors import ActuationError
from remediation.actuators.kubernetes import permissions as of_kubernetes
from remediation.actuators.traffic import permissions as of_traffic
from service.config.settings import Settings


def permissions(settings: Settings) -> dict[str, Any]:
    """Returns what each action of ``kubernetes`` and ``traffic`` lacks; empty if no action uses one of them.

    ``error`` is not empty if the API server did not answer.
    """
    remediation = settings.remediation
    of_performer = {
        "kubernetes": of_kubernetes.NEEDED,
        "traffic": of_traffic.needed(remediation.traffic.by_service()),
    }
    needed = {
        kind: permissions
        for performer, by_kind in of_performer.items()
        for kind, permissions in by_kind.items()
        if remediation.performer(kind) == performer
    }
    if not needed:
        return {}
    try:
        lacking = of_kubernetes.missing(*remediation.kubernetes.server(), needed)
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
    ]
    return {"permissions": {"error": "", "missing": rows}}
