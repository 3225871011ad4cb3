"""Hooks as custom resources of NVSentinel, on a real API server; the test is its janitor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, EntityKind, EntityRef, OutcomeStatus
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.hook.actuator import HookActuator
from remediation.actuators.hook.nvsentinel import GROUP, RESOURCES, NvsentinelHook
from remediation.actuators.kubernetes.ownership import OWNER
from tests.support.kube import Cluster
from tests.support.kube_actions import an_action, node_ref
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
UUID = "GPU-0f000000-0000-4000-8000-000000000001"
GPU = EntityRef("c", EntityKind.GPU, None, UUID)
TEXT, TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
SPECS: dict[str, dict[str, Any]] = {
    "RebootNode": {"required": ["force", "nodeName"], "properties": {"nodeName": TEXT, "force": {"type": "boolean"}}},
    "GPUReset": {
        "required": ["nodeName"],
        "properties": {
            "nodeName": TEXT,
            "selector": {"type": "object", "properties": {"uuids": TEXTS, "pciBusIDs": TEXTS}},
        },
    },
}


NODE = "/api/v1/nodes/node-1"


@pytest.fixture
def janitor(control_plane: Cluster) -> Iterator[Cluster]:
    """The control plane with the two kinds of the janitor, with the fields of its definitions, and a cordoned node."""
    for resource in RESOURCES.values():
        _define(control_plane, resource.kind, resource.plural)
        control_plane.delete(f"/apis/{GROUP}/v1alpha1/{resource.plural}")
    control_plane.node("node-1")
    cordon(control_plane, on=True)
    yield control_plane
    control_plane.delete(NODE)


def cordon(cluster: Cluster, *, on: bool) -> None:
    cluster.patch(NODE, {"spec": {"unschedulable": on}})


def _define(cluster: Cluster, kind: str, plural: str) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    if cluster.http.get(f"{path}/{plural}.{GROUP}").status_code == 404:
        status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        schema = {"type": "object", "properties": {"spec": {"type": "object", **SPECS[kind]}, "status": status}}
        version = {
            "name": "v1alpha1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}},
        }
        names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
        spec = {"group": GROUP, "names": names, "scope": "Cluster", "versions": [version]}
        cluster.create(path, {"metadata": {"name": f"{plural}.{GROUP}"}, "spec": spec})
    until(lambda: cluster.http.get(f"/apis/{GROUP}/v1alpha1/{plural}").status_code == 200, f"{plural} is served")


def actuator(cluster: Cluster, **options: Any) -> HookActuator:
    access = Access(bearer_token_file=cluster.token_file("admin"), tls=Tls(insecure_skip_verify=True))
    hook = NvsentinelHook(cluster.url, access, **options)
    return HookActuator(dict.fromkeys((*RESOURCES, ActionKind.RUN_DIAGNOSTIC), hook))


def only(cluster: Cluster, plural: str) -> dict[str, Any]:
    (item,) = cluster.get(f"/apis/{GROUP}/v1alpha1/{plural}")["items"]
    return dict(item)


def report(cluster: Cluster, plural: str, type_: str, status: str, reason: str, *, complete: bool) -> None:
    """Sets the status, as the janitor does."""
    conditions = [{"type": type_, "status": status, "reason": reason, "message": "m"}]
    value: dict[str, Any] = {"conditions": conditions}
    if complete:
        value["completionTime"] = "2026-11-23T12:00:00Z"
    name = only(cluster, plural)["metadata"]["name"]
    cluster.patch(f"/apis/{GROUP}/v1alpha1/{plural}/{name}/status", {"status": value})


def reboot(**more: Any) -> Action:
    return an_action(ActionKind.REBOOT_NODE, node_ref("node-1"), **more)


def reset(*uuids: str, **more: Any) -> Action:
    return an_action(ActionKind.RESET_GPU, GPU, node="node-1", gpus=list(uuids), **more)


def test_a_reboot_is_requested_once_and_followed(janitor: Cluster) -> None:
    action, hook = reboot(), actuator(janitor, force=True)
    (request,) = hook.requests(action)
    assert request.url == f"/apis/{GROUP}/v1alpha1/rebootnodes"
    assert hook.perform(action).status is OutcomeStatus.IN_PROGRESS
    created = only(janitor, "rebootnodes")
    assert created["spec"] == {"nodeName": "node-1", "force": True}
    assert created["metadata"]["labels"][OWNER] == "outrider"
    assert hook.requests(action) == ()
    report(janitor, "rebootnodes", "NodeReady", "Unknown", "Initializing", complete=False)
    waiting = hook.perform(action)
    assert (waiting.status, "Initializing" in waiting.detail) == (OutcomeStatus.IN_PROGRESS, True)
    report(janitor, "rebootnodes", "NodeReady", "True", "Succeeded", complete=True)
    assert hook.perform(action).status is OutcomeStatus.DONE
    only(janitor, "rebootnodes")


@pytest.mark.parametrize("action", [reboot(), reset(UUID)], ids=["reboot", "reset"])
def test_a_node_that_takes_pods_is_left_alone(janitor: Cluster, action: Action) -> None:
    cordon(janitor, on=False)
    hook = actuator(janitor)
    assert len(hook.requests(action)) == 1, "a plan shows the request, as its cordon is an earlier step"
    with pytest.raises(ActuationError, match="node node-1 is not cordoned") as caught:
        hook.perform(action)
    assert not caught.value.retryable
    assert [janitor.get(f"/apis/{GROUP}/v1alpha1/{each.plural}")["items"] for each in RESOURCES.values()] == [[], []]


def test_an_un_cordon_during_the_reboot_is_no_reason_to_forget_it(janitor: Cluster) -> None:
    action, hook = reboot(), actuator(janitor)
    hook.perform(action)
    cordon(janitor, on=False)
    report(janitor, "rebootnodes", "NodeReady", "True", "Succeeded", complete=True)
    assert hook.perform(action).status is OutcomeStatus.DONE


def test_a_node_that_does_not_return_has_failed(janitor: Cluster) -> None:
    action, hook = reboot(), actuator(janitor)
    hook.perform(action)
    report(janitor, "rebootnodes", "NodeReady", "False", "Timeout", complete=True)
    outcome = hook.perform(action)
    assert (outcome.status, "Timeout" in outcome.detail) == (OutcomeStatus.FAILED, True)


@pytest.mark.parametrize(
    ("reason", "status"),
    [("GPUResetSucceeded", OutcomeStatus.DONE), ("ServiceTeardownTimeoutExceeded", OutcomeStatus.FAILED)],
)
def test_a_complete_reset_succeeded_only_by_its_reason(janitor: Cluster, reason: str, status: OutcomeStatus) -> None:
    action, hook = reset(UUID), actuator(janitor)
    hook.perform(action)
    assert only(janitor, "gpuresets")["spec"] == {"nodeName": "node-1", "selector": {"uuids": [UUID]}}
    report(janitor, "gpuresets", "Complete", "True", reason, complete=True)
    outcome = hook.perform(action)
    assert (outcome.status, reason in outcome.detail) == (status, True)


def test_a_node_is_reset_as_a_whole(janitor: Cluster) -> None:
    actuator(janitor).perform(an_action(ActionKind.RESET_GPU, node_ref("node-1")))
    assert only(janitor, "gpuresets")["spec"] == {"nodeName": "node-1"}


def test_a_dry_run_stores_nothing(janitor: Cluster) -> None:
    assert actuator(janitor).perform(reboot(dry_run=True)).status is OutcomeStatus.DRY_RUN
    assert janitor.get(f"/apis/{GROUP}/v1alpha1/rebootnodes")["items"] == []


def test_what_the_janitor_cannot_do_is_refused(janitor: Cluster) -> None:
    with pytest.raises(ActuationError, match="is not a GPU UUID"):
        actuator(janitor).perform(reset("0"))
    with pytest.raises(ActuationError, match="no custom resource for run_diagnostic"):
        actuator(janitor).perform(an_action(ActionKind.RUN_DIAGNOSTIC, node_ref("node-1")))


def test_a_cluster_without_the_janitor_is_named(janitor: Cluster) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    janitor.delete(f"{path}/rebootnodes.{GROUP}")
    gone = f"/apis/{GROUP}/v1alpha1/rebootnodes"
    until(lambda: janitor.http.get(gone).status_code == 404, "the kind is gone")
    with pytest.raises(ActuationError, match="404") as caught:
        actuator(janitor).perform(reboot())
    assert not caught.value.retryable
