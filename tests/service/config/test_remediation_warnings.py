"""``config check`` warns of actions that nothing can perform, of a kill switch that is on, of missing time zones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.config import settings
from service.config.remediation_warnings import kill_switch_warning
from service.config.scaling_settings import KubernetesApiSettings


@pytest.fixture(autouse=True)
def _outside_a_pod(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def reviewed(tmp_path, text):
    file = tmp_path / "outrider.yaml"
    file.write_text(f"cluster: c\nremediation:\n{text}", encoding="utf-8")
    _, errors, warnings = settings.review(file)
    assert not errors, errors
    return [(warning.line, warning.key, warning.message) for warning in warnings]


def test_the_level_act_without_an_api_server_is_a_warning(tmp_path):
    ((line, key, message),) = reviewed(tmp_path, "  actuator: kubernetes\n  autonomy: act\n")
    assert (line, key) == (4, "remediation.autonomy")
    assert "remediation.kubernetes.url is not set: the performers kubernetes, traffic, degrade can" in message


@pytest.mark.parametrize("section", ["playbooks: {engine-hung: act}", "environments: {lab: act}"])
def test_the_level_act_of_one_name_counts_too(tmp_path, section):
    text = f"  actuators: {{cordon: kubernetes}}\n  environments: {{lab: {{}}}}\n  autonomy_for: {{{section}}}\n"
    ((line, key, message),) = reviewed(tmp_path, text)
    assert line == 5
    assert key.startswith("remediation.autonomy_for.")
    assert "the performers kubernetes can" in message


@pytest.mark.parametrize(
    "text",
    [
        "  actuator: kubernetes\n  autonomy: approve\n",
        "  actuator: kubernetes\n  autonomy: act\n  kubernetes: {url: 'https://10.0.0.1:6443'}\n",
        "  actuator: simulated\n  control_url: http://localhost:1\n  autonomy: act\n",
        "  autonomy: act\n",
        "  autonomy: act\n  actuators: {reboot_node: hook}\n  hooks: {reboot_node: {webhook: {url: 'http://x'}}}\n",
    ],
)
def test_no_warning_where_an_api_server_is_known_or_not_needed(tmp_path, text):
    assert reviewed(tmp_path, text) == []


def test_no_warning_inside_a_pod(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert KubernetesApiSettings().server()[0] is not None
    assert reviewed(tmp_path, "  actuator: kubernetes\n  autonomy: act\n") == []


def test_a_hook_that_runs_a_job_needs_the_api_server(tmp_path):
    text = "  autonomy: act\n  actuators: {reset_gpu: hook}\n  hooks: {reset_gpu: {job: {image: x}}}\n"
    ((_, _, message),) = reviewed(tmp_path, text)
    assert "the performers hook can" in message


def test_the_level_act_with_the_default_performer_is_a_warning(tmp_path):
    ((line, key, message),) = reviewed(tmp_path, "  autonomy: act\n  dry_run: false\n")
    assert (line, key) == (3, "remediation.autonomy")
    assert "nothing is performed: remediation.actuator is dry_run" in message


def test_the_api_server_of_the_autoscalers_is_named_by_its_own_key(tmp_path):
    text = (
        "  autonomy: act\n  actuator: autoscalers\n"
        "services: [{name: chat}]\n"
        "planner: {scaling: {emit: [{service: chat, type: hpa}]}}\n"
    )
    ((_, key, message),) = reviewed(tmp_path, text)
    assert key == "remediation.autonomy"
    assert "planner.scaling.kubernetes.url is not set: the performers autoscalers can" in message


def test_a_kill_switch_in_a_missing_folder_is_a_warning(tmp_path):
    ((line, key, message),) = reviewed(tmp_path, f"  kill_switch_file: {tmp_path}/missing/stop\n")
    assert (line, key) == (3, "remediation.kill_switch_file")
    assert f"{tmp_path}/missing does not exist" in message
    assert "the kill switch is on" in message


def test_a_kill_switch_that_is_on_is_a_warning(tmp_path):
    (tmp_path / "stop").touch()
    ((_, _, message),) = reviewed(tmp_path, f"  kill_switch_file: {tmp_path}/stop\n")
    assert "so the kill switch is on" in message


def test_a_kill_switch_in_a_usable_folder_is_no_warning(tmp_path):
    assert reviewed(tmp_path, f"  kill_switch_file: {tmp_path}/stop\n") == []


@pytest.mark.parametrize(("denied", "message"), [(os.W_OK, "cannot create a file in"), (os.X_OK, "cannot be read")])
def test_a_folder_without_the_needed_rights_is_a_warning(tmp_path, denied, message):
    def access(_: Path, mode: int) -> bool:
        return mode != denied

    assert message in kill_switch_warning(tmp_path / "stop", access)


@pytest.mark.parametrize("section", ["freezes", "maintenance_windows"])
def test_a_window_without_a_time_zone_is_a_warning(tmp_path, section):
    text = f"  {section}:\n  - {{name: n, timezone: UTC, start: '01:00', end: '02:00'}}\n"
    assert reviewed(tmp_path, text) == []
    ((line, key, message),) = reviewed(tmp_path, f"{text}  - {{name: m, start: '01:00', end: '02:00'}}\n")
    assert (line, key) == (5, f"remediation.{section}[1]")
    assert "UTC" in message


def test_a_playbook_that_diverts_a_service_needs_an_outlier_detection(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("playbooks:\n  gateway-fault: {steps: [{action: shift_traffic, target: self}]}\n")
    text = f"  actuators: {{shift_traffic: traffic}}\n  playbooks: ['{own}']\n"
    ((line, key, message),) = reviewed(tmp_path, text)
    assert (line, key) == (4, "remediation.playbooks")
    assert message.startswith("gateway-fault: shift_traffic on a service needs a route of kind destination_rule")
    routed = f"{text}  traffic: {{routes: {{chat: {{kind: destination_rule}}}}}}\nservices: [{{name: chat}}]\n"
    assert reviewed(tmp_path, routed) == []
