"""Applies manifests that Outrider renders to a Kubernetes API server, server-side and without force.

Fields of other field managers are never overwritten: the API server refuses such a document and names their owner. All
documents are tried as server-side dry runs before the first one is stored.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from outrider.errors import ActuationError
from outrider.model import ActionRequest
from outrider.wire.http_auth import Access
from remediation.actuators.api_server import APPLY_PATCH, ApiServer, ConflictError

Document = Mapping[str, Any]
RESOURCES: Mapping[tuple[str, str], tuple[str, bool]] = {
    ("scheduling.k8s.io/v1", "PriorityClass"): ("priorityclasses", False),
    ("apps/v1", "Deployment"): ("deployments", True),
    ("apps/v1", "DaemonSet"): ("daemonsets", True),
    ("batch/v1", "Job"): ("jobs", True),
    ("keda.sh/v1alpha1", "ScaledObject"): ("scaledobjects", True),
}
"""Resource and scope of the kinds that are applied: those of warm-up, pre-pull and scaling documents."""
SETTING = "planner.scaling.kubernetes.url"
_HINT = "grant its account the verb, see deploy/rbac-apply.yaml"
_SERVER_FIELDS = ("managedFields", "resourceVersion", "uid", "generation", "creationTimestamp")


class ApplyResult(StrEnum):
    """Effect of an applied document."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class AppliedDocument:
    """One document: its object, the request, the effect, and the effect as a unified diff."""

    name: str
    request: ActionRequest
    result: ApplyResult
    diff: str


def _nothing(document: AppliedDocument) -> None:
    del document


def apply(
    url: str | None,
    access: Access,
    documents: Sequence[Document],
    *,
    dry_run: bool,
    stored: Callable[[AppliedDocument], None] = _nothing,
) -> list[AppliedDocument]:
    """Applies documents in their order, and calls ``stored`` after each that was; ``dry_run`` stores nothing.

    Raises ActuationError for a kind that Outrider does not render, a missing permission, and a field that another
    manager owns. Such a document blocks all of them.
    """
    requests = [(_name(document), _request(document)) for document in documents]
    with ApiServer((url or "").rstrip("/"), access, setting=SETTING) as server:
        applied = [_tried(server, name, request) for name, request in requests]
        for each in applied:
            if not dry_run and each.result is not ApplyResult.UNCHANGED:
                _sent(server, each.name, each.request, dry_run=False)
                stored(each)
    return applied


def _tried(server: ApiServer, name: str, request: ActionRequest) -> AppliedDocument:
    """Compares the object with the result of a server-side dry run."""
    try:
        before = server.get(request.url, missing_is_empty=True)
    except ActuationError as error:
        raise _explained(name, error) from error
    after = _sent(server, name, request, dry_run=True)
    if not before:
        return AppliedDocument(name, request, ApplyResult.CREATED, _diff(name, {}, request.body))
    diff = _diff(name, _comparable(before), _comparable(after))
    return AppliedDocument(name, request, ApplyResult.CHANGED if diff else ApplyResult.UNCHANGED, diff)


def _sent(server: ApiServer, name: str, request: ActionRequest, *, dry_run: bool) -> dict[str, Any]:
    try:
        return server.send(request, dry_run=dry_run)
    except ActuationError as error:
        raise _explained(name, error) from error


def _explained(name: str, error: ActuationError) -> ActuationError:
    """The error with the object, and the next step for a conflict or a missing permission."""
    hint, retryable = error.hint, error.retryable
    if isinstance(error, ConflictError):  # the fields stay with their owner: a retry cannot succeed
        hint, retryable = "let that manager change the field, or remove its field from the object", False
    if error.status == 403:
        hint = _HINT
    return ActuationError(f"{name}: {error.message}", retryable=retryable, hint=hint, status=error.status)


def _request(document: Document) -> ActionRequest:
    """The apply of a document. Raises ActuationError for a kind that Outrider does not render."""
    version, kind = str(document.get("apiVersion")), str(document.get("kind"))
    resource = RESOURCES.get((version, kind))
    if resource is None:
        kinds = ", ".join(kind for _, kind in RESOURCES)
        raise ActuationError(f"a {kind} of {version} is not applied", retryable=False, hint=f"kinds: {kinds}")
    plural, namespaced = resource
    meta = document["metadata"]
    space = f"/namespaces/{meta.get('namespace') or 'default'}" if namespaced else ""
    return ActionRequest("PATCH", f"/apis/{version}{space}/{plural}/{meta['name']}", dict(document), APPLY_PATCH)


def _name(document: Document) -> str:
    meta = document.get("metadata") or {}
    space = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{document.get('kind')} {space}{meta.get('name')}"


def _comparable(document: Document) -> dict[str, Any]:
    """The object without the fields that its server sets."""
    meta = {key: value for key, value in document["metadata"].items() if key not in _SERVER_FIELDS}
    return {**{key: value for key, value in document.items() if key != "status"}, "metadata": meta}


def _diff(name: str, before: Document, after: Document) -> str:
    old, new = (_lines(document) for document in (before, after))
    return "\n".join(difflib.unified_diff(old, new, f"{name} now", f"{name} applied", lineterm="", n=2))


def _lines(document: Document) -> list[str]:
    return yaml.safe_dump(dict(document), sort_keys=True, allow_unicode=True).splitlines() if document else []
