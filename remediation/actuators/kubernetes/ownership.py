"""Marks on changed objects, and owners whose objects are left to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outrider.model import Action
from outrider.vocabulary import cluster_peers

OWNER = "outrider.io/owner"
SESSION = "outrider.io/session"
INCIDENT = "outrider.io/incident"
ACTION = "outrider.io/action"
_OWNER_NAME = "outrider"
_LABEL_LENGTH = 63  # Kubernetes, "Labels and Selectors": syntax of a label value
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9_.-]+")
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


def keeper_of(node: Json) -> str:
    """Returns the program that removes a node or keeps it in quarantine; empty without one."""
    taints = [str(taint.get("key")) for taint in node.get("spec", {}).get("taints") or ()]
    deleted = "its deletion" if metadata(node).get("deletionTimestamp") else ""
    return cluster_peers.remover(taints) or cluster_peers.quarantine(annotations_of(node), labels_of(node)) or deleted


def reconciler_of(document: Json) -> str:
    """Returns the operator or GitOps controller that would revert a change; empty without one."""
    controller = controller_of(document)
    if controller is not None:
        return f"{controller.get('kind')} {controller.get('name')}"
    managers = (str(entry.get("manager", "")) for entry in metadata(document).get("managedFields", []))
    application = cluster_peers.gitops_owner(annotations_of(document), labels_of(document))
    return application or cluster_peers.reconciler(managers)


def annotations_of(document: Json) -> Mapping[str, Any]:
    """Returns the annotations of an object."""
    result = metadata(document).get("annotations")
    return result if isinstance(result, Mapping) else {}
