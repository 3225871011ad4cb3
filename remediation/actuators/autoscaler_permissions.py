"""Permissions that scaling through autoscaling objects needs, by the kinds of the objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from remediation.actuators.kubernetes.permissions import Permission

_HPA, _KEDA, _KNATIVE = "autoscaling", "keda.sh", "serving.knative.dev"
NEEDED: Mapping[str, tuple[Permission, ...]] = {
    "hpa": tuple(Permission(verb, "horizontalpodautoscalers", _HPA) for verb in ("get", "patch")),
    "scaled_object": tuple(Permission(verb, "scaledobjects", _KEDA) for verb in ("get", "patch")),
    "knative": (
        Permission("get", "services", _KNATIVE),
        *(Permission(verb, "revisions", _KNATIVE) for verb in ("get", "patch")),
    ),
    "deployment": (
        *(Permission(verb, "deployments", "apps") for verb in ("get", "patch")),
        Permission("list", "horizontalpodautoscalers", _HPA),
        Permission("list", "scaledobjects", _KEDA),
    ),
}
"""By the type of a receiver. A webhook needs none."""


def needed(receivers: Iterable[tuple[str, str]]) -> tuple[Permission, ...]:
    """Returns the permissions of receivers, each with its type and namespace; the namespace is empty if unknown."""
    listed = (
        replace(permission, namespace=namespace) for kind, namespace in receivers for permission in NEEDED.get(kind, ())
    )
    return tuple(dict.fromkeys(listed))
