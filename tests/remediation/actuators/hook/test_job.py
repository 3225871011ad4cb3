"""Hooks as Jobs on a real control plane: its Job controller and scheduler, with the test as the kubelet."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, EntityKind, EntityRef, OutcomeStatus
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.hook.actuator import HookActuator
from remediation.actuators.hook.job import JobHook
from remediation.actuators.hook.job_manifest import JobOptions, job_name, packaged
from remediation.actuators.kubernetes.nodes import TAINT
from remediation.actuators.kubernetes.ownership import ACTION, INCIDENT, OWNER, SESSION
from tests.remediation.actuators.hook.conftest import SPACE
from tests.support.kube import Cluster
from tests.support.kube_actions import actuator_of, an_action, node_ref
from tests.support.kube_jobs import await_end, end_pod, pod_of
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
UUID = "GPU-0f000000-0000-4000-8000-000000000001"
DIAGNOSTIC, RESET, REBOOT = ActionKind.RUN_DIAGNOSTIC, ActionKind.RESET_GPU, ActionKind.REBOOT_NODE
DONE, FAILED, IN_PROGRESS = OutcomeStatus.DONE, OutcomeStatus.FAILED, OutcomeStatus.IN_PROGRESS


def actuator(cluster: Cluster, kind: ActionKind = DIAGNOSTIC, **options: Any) -> HookActuator:
    given = {"template": packaged(kind), "image": "dcgm:test", "namespace": SPACE, **options}
    access = Access(bearer_token_file=cluster.token_file("admin"), tls=Tls(insecure_skip_verify=True))
    return HookActuator({kind: JobHook(cluster.url, access, JobOptions(**given))})


def diagnostic(node: str = "hook-a", **more: Any) -> Action:
    return an_action(DIAGNOSTIC, node_ref(node), **more)


def jobs(cluster: Cluster) -> list[dict[str, Any]]:
    return list(cluster.get(f"/apis/batch/v1/namespaces/{SPACE}/jobs")["items"])


def ended(cluster: Cluster, hook: HookActuator, action: Action, *, exit_code: int = 0, message: str = "") -> Any:
    """Runs an action to its end, with this end of its container."""
    assert hook.perform(action).status is IN_PROGRESS
    end_pod(cluster, pod_of(cluster, SPACE, job_name(action)), exit_code=exit_code, message=message)
    await_end(cluster, SPACE, job_name(action))
    return hook.perform(action)


def report(passed: bool = True, **check: Any) -> str:
    checks = [{"name": "all_reduce", "passed": passed, **check}] if check else []
    return json.dumps({"passed": passed, "checks": checks})


def test_a_job_runs_once_on_its_cordoned_node(cluster: Cluster) -> None:
    actuator_of(cluster).perform(an_action(ActionKind.CORDON, node_ref("hook-b")))
    hook, action = actuator(cluster), diagnostic("hook-b")
    (request,) = hook.requests(action)
    assert (request.method, request.url) == ("POST", f"/apis/batch/v1/namespaces/{SPACE}/jobs")
    assert hook.perform(action).status is IN_PROGRESS
    assert hook.perform(action).status is IN_PROGRESS
    assert hook.requests(action) == ()
    (job,) = jobs(cluster)
    pod = pod_of(cluster, SPACE, job["metadata"]["name"])
    assert pod["spec"]["nodeName"] == "hook-b", "our own taint keeps it not away"
    labels = job["metadata"]["labels"]
    assert (labels[OWNER], labels[SESSION], labels[INCIDENT]) == ("outrider", "ses-1", "inc-1")
    assert job["metadata"]["annotations"][ACTION] == action.id
    spec = job["spec"]
    limits = spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]
    assert limits == (0, 900, 86_400)
    variables = {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}
    assert (variables["OUTRIDER_NODE"], variables["OUTRIDER_LEVEL"]) == ("hook-b", "1")
    assert pod["spec"]["containers"][0]["image"] == "dcgm:test"
    assert TAINT in {entry.get("key") for entry in pod["spec"]["tolerations"]}


def test_success_and_failure_carry_the_message_of_the_pod(cluster: Cluster) -> None:
    hook = actuator(cluster)
    good = ended(cluster, hook, diagnostic(), message=report(value=400.0, unit="GB/s", limit=300))
    assert (good.status, good.detail) == (DONE, "hook-a: diagnostic passed: all_reduce 400 GB/s (limit 300)")
    bad = ended(cluster, hook, diagnostic(), exit_code=226, message="Memory: Fail\nGPU 3 has 2 pending rows")
    assert bad.status is FAILED
    assert bad.detail.endswith("failed: Memory: Fail\nGPU 3 has 2 pending rows")
    silent = ended(cluster, hook, diagnostic(), exit_code=137)
    assert (silent.status, silent.detail.endswith("failed: exit code 137 (Error)")) == (FAILED, True)


def test_a_report_that_did_not_pass_fails_although_the_job_completed(cluster: Cluster) -> None:
    outcome = ended(cluster, actuator(cluster), diagnostic(), message=report(passed=False, value=9, unit="GB/s"))
    assert (outcome.status, outcome.detail) == (FAILED, "hook-a: diagnostic failed: all_reduce 9 GB/s")


@pytest.mark.parametrize("message", ['{"passed": tr', '{"checks": []}', '{"passed": true, "checks": [{"name": 3}]}'])
def test_a_report_that_cannot_be_read_returns_no_node(cluster: Cluster, message: str) -> None:
    outcome = ended(cluster, actuator(cluster), diagnostic(), message=message)
    assert outcome.status is FAILED
    assert "cannot be read" in outcome.detail


def test_bandwidth_is_compared_with_the_median_of_other_nodes(cluster: Cluster) -> None:
    hook = actuator(cluster)
    for node, value in (("hook-a", 400.0), ("hook-b", 420.0)):
        assert ended(cluster, hook, diagnostic(node), message=report(value=value, unit="GB/s")).status is DONE
    slow = ended(cluster, hook, diagnostic("hook-c"), message=report(value=300.0, unit="GB/s"))
    assert slow.status is FAILED
    assert "is below 80% of 410 GB/s, the median of 2 nodes" in slow.detail
    usual = ended(cluster, hook, diagnostic("hook-c"), message=report(value=390.0, unit="GB/s"))
    assert usual.status is DONE


def test_a_job_that_takes_too_long_fails(cluster: Cluster) -> None:
    template = {**packaged(DIAGNOSTIC)}
    template["spec"] = {**template["spec"], "activeDeadlineSeconds": 1}
    hook, action = actuator(cluster, template=template), diagnostic()
    assert hook.perform(action).status is IN_PROGRESS
    pod_of(cluster, SPACE, job_name(action))
    outcome = until(lambda: None if (end := hook.perform(action)).status is IN_PROGRESS else end, "the Job has failed")
    assert outcome.status is FAILED, "although no kubelet confirms the end of its pod"
    assert "DeadlineExceeded" in outcome.detail


def test_a_dry_run_is_one_of_the_server(cluster: Cluster) -> None:
    outcome = actuator(cluster).perform(diagnostic(dry_run=True))
    assert outcome.status is OutcomeStatus.DRY_RUN
    assert jobs(cluster) == []
    faulty = replace(diagnostic(dry_run=True), id="act-faulty")
    with pytest.raises(ActuationError, match="runtimeClassName") as caught:
        actuator(cluster, runtime_class="Not A Name").perform(faulty)
    assert not caught.value.retryable


def test_a_reset_needs_a_cordoned_node_and_names_its_devices(cluster: Cluster) -> None:
    gpu = EntityRef("c", EntityKind.GPU, None, UUID)
    action = an_action(RESET, gpu, node="hook-a", gpus=[UUID])
    hook = actuator(cluster, RESET)
    assert len(hook.requests(action)) == 1
    with pytest.raises(ActuationError, match="is not cordoned") as caught:
        hook.perform(action)
    assert not caught.value.retryable
    assert jobs(cluster) == []
    actuator_of(cluster).perform(an_action(ActionKind.CORDON, node_ref("hook-a")))
    assert hook.perform(action).status is IN_PROGRESS
    pod = pod_of(cluster, SPACE, job_name(action))
    variables = {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}
    assert variables["OUTRIDER_GPUS"] == UUID
    end_pod(cluster, pod, message="")
    await_end(cluster, SPACE, job_name(action))
    assert hook.perform(action).status is DONE


def test_a_reboot_is_judged_by_the_boot_id_of_its_node(cluster: Cluster) -> None:
    path = "/api/v1/nodes/hook-a"
    actuator_of(cluster).perform(an_action(ActionKind.CORDON, node_ref("hook-a")))
    hook, action = actuator(cluster, REBOOT), an_action(REBOOT, node_ref("hook-a"))
    assert hook.perform(action).status is IN_PROGRESS
    end_pod(cluster, pod_of(cluster, SPACE, job_name(action)))
    await_end(cluster, SPACE, job_name(action))
    waiting = hook.perform(action)
    assert (waiting.status, waiting.detail) == (IN_PROGRESS, "hook-a has not rebooted yet")

    def report_node(ready: str, boot: str) -> None:
        info = {**cluster.get(path)["status"]["nodeInfo"], "bootID": boot}
        conditions = [{"type": "Ready", "status": ready, "reason": "Kubelet"}]
        status = {"status": {"nodeInfo": info, "conditions": conditions}}
        cluster.patch(f"{path}/status", status, by="kubelet")

    report_node("False", "boot-2")
    assert hook.perform(action).status is IN_PROGRESS
    report_node("True", "boot-2")
    outcome = hook.perform(action)
    assert (outcome.status, outcome.detail) == (DONE, "hook-a has rebooted and is ready")


def test_a_reboot_whose_job_fails_before_it_has_failed(cluster: Cluster) -> None:
    actuator_of(cluster).perform(an_action(ActionKind.CORDON, node_ref("hook-a")))
    hook = actuator(cluster, REBOOT)
    outcome = ended(cluster, hook, an_action(REBOOT, node_ref("hook-a")), exit_code=1, message="nsenter: denied")
    assert (outcome.status, "nsenter: denied" in outcome.detail) == (FAILED, True)


def test_no_job_is_created_for_a_node_that_the_control_plane_has_lost(cluster: Cluster) -> None:
    """Its pod would wait for a kubelet that does not answer until the action times out."""
    actuator_of(cluster).perform(an_action(ActionKind.CORDON, node_ref("hook-a")))
    conditions = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    cluster.patch("/api/v1/nodes/hook-a/status", {"status": {"conditions": conditions}}, by="kubelet")
    hook, action = actuator(cluster, REBOOT), an_action(REBOOT, node_ref("hook-a"))
    for attempt in (hook.perform, hook.requests):
        with pytest.raises(ActuationError, match="hook-a is unreachable, so no Job can run on it") as caught:
            attempt(action)
        assert (caught.value.retryable, caught.value.hint) == (
            False, "configure a webhook or nvsentinel in remediation.hooks.reboot_node",
        )  # fmt: skip
    assert jobs(cluster) == []


def test_a_node_that_no_longer_exists_is_no_target(cluster: Cluster) -> None:
    with pytest.raises(ActuationError, match="node gone no longer exists") as caught:
        actuator(cluster).perform(diagnostic("gone"))
    assert not caught.value.retryable


def test_a_job_of_the_same_name_of_someone_else_is_left_alone(cluster: Cluster) -> None:
    action = diagnostic()
    container = {"name": "c", "image": "i"}
    spec = {"template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
    body = {"metadata": {"name": job_name(action)}, "spec": spec}
    cluster.create(f"/apis/batch/v1/namespaces/{SPACE}/jobs", body)
    with pytest.raises(ActuationError, match="belongs to another action"):
        actuator(cluster).perform(action)


def test_a_device_without_a_known_node_is_refused(cluster: Cluster) -> None:
    gpu = EntityRef("c", EntityKind.GPU, None, UUID)
    with pytest.raises(ActuationError, match="is unknown"):
        actuator(cluster, RESET).perform(an_action(RESET, gpu, gpus=[UUID]))


def test_every_packaged_job_is_accepted_by_the_server(cluster: Cluster) -> None:
    if cluster.http.get("/apis/node.k8s.io/v1/runtimeclasses/nvidia").status_code == 404:
        cluster.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    limits = {"nvidia.com/gpu": "8"}
    for kind, template in (
        (DIAGNOSTIC, packaged(DIAGNOSTIC)),
        (DIAGNOSTIC, packaged(DIAGNOSTIC, "driver")),
        (DIAGNOSTIC, packaged(DIAGNOSTIC, "bandwidth")),
        (DIAGNOSTIC, packaged(DIAGNOSTIC, "generation")),
        (RESET, packaged(RESET)),
        (REBOOT, packaged(REBOOT)),
    ):
        action = replace(an_action(kind, node_ref("hook-a")), dry_run=False)
        cluster.patch("/api/v1/nodes/hook-a", {"spec": {"unschedulable": True}})
        hook = actuator(cluster, kind, template=template, runtime_class="nvidia", limits=limits)
        assert hook.perform(action).status is IN_PROGRESS
        pod = pod_of(cluster, SPACE, job_name(action))
        assert pod["spec"]["runtimeClassName"] == "nvidia"
        assert pod["spec"]["containers"][0]["resources"]["limits"] == limits
        end_pod(cluster, pod)
        await_end(cluster, SPACE, job_name(action))
    until(lambda: len(jobs(cluster)) == 6, "each has its own Job")
