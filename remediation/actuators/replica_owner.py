"""Owners of a number of replicas: autoscalers, other controllers, other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.errors import ActuationError
from remediation.actuators.api_server import FIELD_MANAGER, ApiServer

_MANUAL_MANAGERS = (
    "kubectl"  # field managers with these prefixes are manual edits, which the requested plan may overwrite
)
_AUTOSCALERS = {
    "HorizontalPodAutoscaler": "/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers",
    "ScaledObject": "/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects",
}
_PAUSED = ("autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas")  # KEDA, "Pausing autoscaling"
Json = Mapping[str, Any]


def check_not_autoscaled(server: ApiServer, workload: Json, path: str, kind: str = "Deployment") -> None:
    """Raises ActuationError if an autoscaler sets the replicas of this workload."""
    meta = workload.get("metadata", {})
    for autoscaler, template in _AUTOSCALERS.items():
        listed = server.get(template.format(namespace=meta.get("namespace")), missing_is_empty=True)
        for item in listed.get("items", []):
            target = item.get("spec", {}).get("scaleTargetRef", {})
            if target.get("name") == meta.get("name") and target.get("kind", "Deployment") == kind:
                name = item["metadata"]["name"]
                sentence = f"{path}: its replicas belong to {autoscaler} {name}"
                raise ActuationError(sentence, retryable=False, hint="name that object in planner.scaling.emit")


def check_not_paused(scaled_object: Json, path: str) -> None:
    """Raises ActuationError if an operator paused this ScaledObject: its limits have no effect then."""
    notes = scaled_object.get("metadata", {}).get("annotations") or {}
    paused = next((key for key in _PAUSED if notes.get(key) not in (None, "", "false")), None)
    if paused is not None:
        raise ActuationError(f"{path} is paused by {paused}", retryable=False, hint="remove the annotation to scale it")


def owner_of(result: Json, field: Sequence[str], *, controlled: bool = True) -> str:
    """The other owner of a field: its controller, or another program's field manager; else empty.

    ``controlled`` False: an owner of the object is acceptable, as for Knative revisions.
    """
    meta = result.get("metadata", {})
    for owner in meta.get("ownerReferences", []) if controlled else []:
        if owner.get("controller"):
            return f"{owner.get('kind')} {owner.get('name')}"
    managers = managers_of(result, field)
    others = (name for name in managers if name != FIELD_MANAGER and not name.startswith(_MANUAL_MANAGERS))
    return next((f"field manager {name}" for name in others), "")


def managers_of(result: Json, field: Sequence[str]) -> list[str]:
    """The field managers of a field, in their order; none if the API server does not track them."""
    names: dict[str, None] = {}
    for entry in result.get("metadata", {}).get("managedFields", []):
        node: Any = entry.get("fieldsV1", {})
        for part in field:
            node = node.get(f"f:{part}") if isinstance(node, Mapping) else None
        if node is not None:
            names[str(entry.get("manager", ""))] = None
    return list(names)
