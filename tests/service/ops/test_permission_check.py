"""Missing permissions of the acting account, in ``outrider doctor``."""

from __future__ import annotations

import pytest

from outrider.model import ActionKind
from service.cli.ops import collect
from service.config import settings
from service.ops.permission_check import needed_by, permissions
from tests.support.kube import Cluster


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
    assert text == "cordon: the acting account lacks get nodes, patch nodes; see deploy/rbac-act.yaml"


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
    needed = needed_by(configured(tmp_path, f"{{{hooks}}}").remediation)
    assert {kind.value for kind in needed} == {"run_diagnostic", "reboot_node"}, "a webhook needs no permission"
    by_job = {(each.verb, each.resource, each.namespace) for each in needed[ActionKind.RUN_DIAGNOSTIC]}
    assert by_job == {
        ("get", "nodes", ""), ("create", "jobs", "diag"), ("get", "jobs", "diag"), ("list", "pods", "diag"),
    }  # fmt: skip
    assert {each.resource for each in needed[ActionKind.REBOOT_NODE]} == {"nodes", "rebootnodes"}


def test_hooks_without_their_performer_need_nothing(tmp_path):
    text = "{hooks: {run_diagnostic: {job: {image: i}}}}"
    assert needed_by(configured(tmp_path, text).remediation) == {}
