"""Marks on changed objects, and owners whose objects are left to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outrider.model import Action

OWNER = "outrider.io/owner"
SESSION = "outrider.io/session"
INCIDENT = "outrider.io/incident"
ACTION = "outrider.io/action"
_OWNER_NAME = "outrider"
_LABEL_LENGTH = 63  # Kubernetes, "Labels and Selectors": syntax of a label value
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9_.-]+")
# Field managers that reconcile continuously: a change of theirs would be reverted.
_RECONCILERS = ("argocd", "kustomize-controller", "helm-controller", "fleetagent", "rollouts-controller", "flagger")
# Labels and annotations by which Argo CD and Flux track what they reconcile.
_TRACKING = {
    "argocd.argoproj.io/tracking-id": "Argo CD",
    "argocd.argoproj.io/instance": "Argo CD",
    "kustomize.toolkit.fluxcd.io/name": "Flux",
    "helm.toolkit.fluxcd.io/name": "Flux",
}
Json = Mapping[str, Any]


def label_value(text: str) -> str:
    """Returns the text as a valid label value."""
    return _NOT_IN_LABELS.sub("-", text)[:_LABEL_LENGTH].strip("-_.")


def marks(action: Action) -> dict[str, dict[str, str]]:
    """Returns the metadata of an object that the action changes: owner, session, incident and action."""
    labels = {
        OWNER: _OWNER_NAME,
        SESSION: label_value(action.session),
        INCIDENT: label_value(action.because),
    }
    return {"labels": labels, "annotations": {ACTION: action.id}}


def cleared() -> dict[str, dict[str, None]]:
    """Returns the merge patch that removes our marks."""
    return {"labels": dict.fromkeys((OWNER, SESSION, INCIDENT)), "annotations": {ACTION: None}}


def is_ours(document: Json) -> bool:
    """True if the object carries our owner label."""
    return bool(labels_of(document).get(OWNER) == _OWNER_NAME)


def is_of_session(document: Json, action: Action) -> bool:
    """True if this session marked the object."""
    return is_ours(document) and labels_of(document).get(SESSION) == label_value(action.session)


def performed_by(document: Json) -> str:
    """Returns the id of the action that last changed the object, or an empty string."""
    return str(metadata(document).get("annotations", {}).get(ACTION, ""))


def metadata(document: Json) -> dict[str, Any]:
    """Returns the metadata of an object."""
    result = document.get("metadata")
    return dict(result) if isinstance(result, Mapping) else {}


def labels_of(document: Json) -> Mapping[str, Any]:
    """Returns the labels of an object."""
    result = metadata(document).get("labels")
    return result if isinstance(result, Mapping) else {}


def controller_of(document: Json) -> Mapping[str, Any] | None:
    """Returns the owner reference of the controller, None without one."""
    owners = metadata(document).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def reconciler_of(document: Json) -> str:
    """Returns the operator or GitOps controller that would revert a change; empty without one."""
    controller = controller_of(document)
    if controller is not None:
        return f"{controller.get('kind')} {controller.get('name')}"
    for entry in metadata(document).get("managedFields", []):
        manager = str(entry.get("manager", ""))
        if manager.startswith(_RECONCILERS):
            return manager
    tracked = (*labels_of(document), *(metadata(document).get("annotations") or {}))
    return next((_TRACKING[key] for key in tracked if key in _TRACKING), "")
