"""Applies documents to a real API server: server-side, strict, and a second time without effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import yaml

from tests.support import crds
from tests.support.kube import Cluster, MissingError

SPACE = "accepted"
_PLURALS = {
    "PriorityClass": ("scheduling.k8s.io/v1", "priorityclasses"),
    "Deployment": ("apps/v1", "deployments"),
    "DaemonSet": ("apps/v1", "daemonsets"),
    "Job": ("batch/v1", "jobs"),
    "ScaledObject": ("keda.sh/v1alpha1", "scaledobjects"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "horizontalpodautoscalers"),
    "serving.knative.dev/Service": ("serving.knative.dev/v1", "services"),
    "Revision": ("serving.knative.dev/v1", "revisions"),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", "httproutes"),
    "VirtualService": ("networking.istio.io/v1", "virtualservices"),
    "DestinationRule": ("networking.istio.io/v1", "destinationrules"),
}
_OF_CLUSTER = ("PriorityClass",)
_OWN_CLASSES = ("outrider-balloon", "outrider-pre-pull")


def where(kind: str, name: str = "") -> str:
    """Returns the path of a kind in the namespace of these tests, or of one object. ``v1/Service`` is a core kind."""
    if kind == "v1/Service":
        return f"/api/v1/namespaces/{SPACE}/services" + (f"/{name}" if name else "")
    version, plural = _PLURALS.get(kind) or _PLURALS[f"serving.knative.dev/{kind}"]
    space = "" if kind in _OF_CLUSTER else f"/namespaces/{SPACE}"
    return f"/apis/{version}{space}/{plural}" + (f"/{name}" if name else "")


@contextmanager
def accepting(cluster: Cluster, *modules: str) -> Iterator[Cluster]:
    """Installs the definitions of ``modules`` and the namespace; objects of the tests are removed afterwards."""
    try:
        kinds = crds.install(cluster, *modules)
    except MissingError as error:
        pytest.skip(f"missing: {error}")
    if cluster.http.get(f"/api/v1/namespaces/{SPACE}").status_code == 404:
        cluster.namespace(SPACE)
    yield cluster
    for kind in ("Deployment", "DaemonSet", "Job", "HorizontalPodAutoscaler", *kinds):
        cluster.delete(where(kind), params={"propagationPolicy": "Background"})
    for name in _OWN_CLASSES:
        cluster.delete(where("PriorityClass", name))


def applied(cluster: Cluster, body: Mapping[str, Any], manager: str = "outrider") -> httpx.Response:
    """Applies server-side, strict, without force."""
    kind = "v1/Service" if (body["apiVersion"], body["kind"]) == ("v1", "Service") else str(body["kind"])
    return cluster.http.patch(
        where(kind, body["metadata"]["name"]),
        content=yaml.safe_dump(dict(body)),
        params={"fieldManager": manager, "fieldValidation": "Strict"},
        headers={"Content-Type": "application/apply-patch+yaml"},
    )


def taken(cluster: Cluster, body: Mapping[str, Any]) -> dict[str, Any]:
    """Applies a document twice and checks that the second time changes nothing."""
    first = applied(cluster, body)
    assert first.status_code == 201, first.text
    again = applied(cluster, body)
    assert again.status_code == 200, again.text
    created, same = first.json()["metadata"], again.json()["metadata"]
    assert (same["uid"], same.get("generation")) == (created["uid"], created.get("generation"))
    document: dict[str, Any] = again.json()
    return document
