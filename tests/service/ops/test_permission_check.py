"""Missing permissions of the acting account, in ``outrider doctor``."""

from __future__ import annotations

import pytest

from outrider.model import ActionKind
from remediation.actuators.autoscaler_permissions import NEEDED
from service.cli.ops import collect
from service.config import settings
from service.ops.permission_check import needed_by, needed_to_scale, permissions
from tests.support.kube import Cluster
from tests.support.kube_actions import ROOT, granted_by_manifest
from tests.support.waiting import until


def configured(tmp_path, text):
    file = tmp_path / "outrider.yaml"
    file.write_text(f"remediation: {text}\n", encoding="utf-8")
    return settings.load(file)


def by_reader(cluster, actuators):
    access = f"bearer_token_file: {cluster.token_file('stranger')}, insecure_skip_verify: true"
    return f"{{{actuators}, kubernetes: {{url: '{cluster.url}', {access}}}}}"


def test_without_actions_on_kubernetes_nothing_is_checked(tmp_path):
    assert permissions(configured(tmp_path, "{actuator: dry_run}")) == {}


@pytest.mark.control_plane
def test_only_actions_of_the_performer_kubernetes_are_listed(tmp_path, control_plane: Cluster):
    checked = permissions(configured(tmp_path, by_reader(control_plane, "actuators: {cordon: kubernetes}")))
    (row,) = checked["permissions"]["missing"]
    assert row["action"] == "cordon"
    assert {(each["verb"], each["resource"]) for each in row["permissions"]} == {("get", "nodes"), ("patch", "nodes")}
    (text,) = collect.permission_blocks(checked["permissions"], "en")
    assert text == (
        "cordon: the account of remediation.kubernetes lacks get nodes, patch nodes; see deploy/rbac-act.yaml"
    )


def test_an_unreachable_server_is_reported(tmp_path):
    checked = permissions(configured(tmp_path, "{actuator: kubernetes, kubernetes: {url: 'https://127.0.0.1:9'}}"))
    assert "cannot be reached" in checked["permissions"]["error"]
    assert checked["permissions"]["missing"] == []


@pytest.mark.control_plane
def test_actions_of_the_performer_traffic_are_listed_by_their_technique(tmp_path, control_plane: Cluster):
    routes = "traffic: {routes: {chat: {kind: destination_rule}}}"
    checked = permissions(
        configured(tmp_path, by_reader(control_plane, f"actuators: {{shift_traffic: traffic}}, {routes}"))
    )
    (row,) = checked["permissions"]["missing"]
    assert row["action"] == "shift_traffic"
    groups = {each["group"] for each in row["permissions"]}
    assert groups == {"", "apps", "networking.istio.io"}, "the configured technique, and the default of other services"


def test_hooks_need_what_their_form_needs(tmp_path):
    hooks = (
        "actuators: {run_diagnostic: hook, reboot_node: hook, reset_gpu: hook}, hooks: {"
        "run_diagnostic: {job: {image: i, namespace: diag}}, reboot_node: {nvsentinel: {}}, "
        "reset_gpu: {webhook: {url: 'https://h/x'}}}"
    )
    by_server = configured(tmp_path, f"{{{hooks}, kubernetes: {{url: 'https://k'}}}}").remediation
    reset = {(each.verb, each.resource) for each in needed_by(by_server)[ActionKind.RESET_GPU]}
    assert reset == {("get", "nodes")}, "the cordon of its node is checked"
    needed = needed_by(configured(tmp_path, f"{{{hooks}}}").remediation)
    assert {kind.value for kind in needed} == {"run_diagnostic", "reboot_node"}, "a webhook without a server"
    by_job = {(each.verb, each.resource, each.namespace) for each in needed[ActionKind.RUN_DIAGNOSTIC]}
    assert by_job == {
        ("get", "nodes", ""), ("create", "jobs", "diag"), ("get", "jobs", "diag"), ("list", "pods", "diag"),
    }  # fmt: skip
    assert {each.resource for each in needed[ActionKind.REBOOT_NODE]} == {"nodes", "rebootnodes"}


def test_hooks_without_their_performer_need_nothing(tmp_path):
    text = "{hooks: {run_diagnostic: {job: {image: i}}}}"
    assert needed_by(configured(tmp_path, text).remediation) == {}


AUTOSCALED = """\
remediation: {actuators: {scale: autoscalers}}
services: [{name: chat}, {name: draft}, {name: rerank}, {name: embed, namespace: vectors}]
planner:
  scaling:
    kubernetes: {url: 'URL', bearer_token_file: TOKEN, insecure_skip_verify: true}
    emit:
    - {service: chat, type: hpa, namespace: llm}
    - {service: draft, type: scaled_object, namespace: llm}
    - {service: embed, type: knative}
    - {service: rerank, type: deployment, namespace: llm}
    - {service: chat, type: webhook, url: 'https://h/x'}
"""


def autoscaled(tmp_path, url="https://127.0.0.1:9", token="/nowhere"):
    file = tmp_path / "outrider.yaml"
    file.write_text(AUTOSCALED.replace("URL", url).replace("TOKEN", str(token)), encoding="utf-8")
    return settings.load(file)


def test_scaling_through_autoscalers_needs_its_objects_in_their_namespaces(tmp_path):
    needed = needed_to_scale(autoscaled(tmp_path))[ActionKind.SCALE]
    assert {(each.verb, each.resource, each.namespace) for each in needed} == {
        ("get", "horizontalpodautoscalers", "llm"), ("patch", "horizontalpodautoscalers", "llm"),
        ("list", "horizontalpodautoscalers", "llm"), ("get", "scaledobjects", "llm"),
        ("patch", "scaledobjects", "llm"), ("list", "scaledobjects", "llm"), ("get", "services", "vectors"),
        ("get", "revisions", "vectors"), ("patch", "revisions", "vectors"), ("get", "deployments", "llm"),
        ("patch", "deployments", "llm"),
    }  # fmt: skip
    assert needed_to_scale(configured(tmp_path, "{actuator: dry_run}")) == {}


def test_the_acting_manifest_grants_what_autoscalers_need():
    granted = granted_by_manifest()
    assert {each for kind in NEEDED.values() for each in kind} <= granted


@pytest.mark.control_plane
def test_missing_permissions_name_their_account_and_namespace(tmp_path, control_plane: Cluster):
    stranger = autoscaled(tmp_path, control_plane.url, control_plane.token_file("stranger"))
    (row,) = permissions(stranger)["permissions"]["missing"]
    assert (row["action"], row["account"]) == ("scale", "planner.scaling.kubernetes")
    (text,) = collect.permission_blocks(permissions(stranger)["permissions"], "en")
    assert text.startswith("scale: the account of planner.scaling.kubernetes lacks ")
    assert "patch horizontalpodautoscalers in the namespace llm" in text
    control_plane.apply((ROOT / "deploy" / "rbac.yaml").read_text(encoding="utf-8"))
    control_plane.apply((ROOT / "deploy" / "rbac-act.yaml").read_text(encoding="utf-8"))
    acting = autoscaled(tmp_path, control_plane.url, control_plane.token_file("actor"))
    until(lambda: permissions(acting) == {"permissions": {"error": "", "missing": []}}, "nothing is missing")


def test_a_server_that_does_not_answer_hides_no_gap_of_another(tmp_path):
    checked = permissions(autoscaled(tmp_path))["permissions"]
    assert (checked["missing"], "cannot be read" in checked["error"]) == ([], True)
    rows = {"error": "a cannot be reached", "missing": [
        {"action": "cordon", "account": "remediation.kubernetes",
         "permissions": [{"verb": "get", "resource": "nodes", "group": "", "namespace": None}]}
    ]}  # fmt: skip
    (text,) = collect.permission_blocks(rows, "en")
    assert "a cannot be reached" in text
    assert "lacks get nodes" in text
