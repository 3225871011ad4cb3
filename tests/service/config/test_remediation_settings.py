"""The section ``remediation``: levels, windows and names, with file, line and key of every mistake."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.errors import ConfigError
from outrider.model import ActionKind
from remediation.decide.autonomy import Autonomy, Environment
from remediation.decide.limits import Policy
from service.config import settings
from service.wiring import remediation as wiring

FULL = """remediation:
  autonomy: approve
  autonomy_for:
    playbooks: {engine-hung: act, plan: recommend}
    services: {chat: observe}
    environments: {prod: approve}
  environments: {prod: {clusters: [eu-1], namespaces: ["prod-*"]}}
  maintenance_windows:
  - {name: nightly, timezone: Asia/Shanghai, start: "22:00", end: 24:00, days: [sat, sun], services: [chat]}
  freezes:
  - {name: holidays, timezone: Europe/Berlin, start: 2026-12-24, end: 2026-12-27 06:00, environments: [prod]}
  disruptive: [drain, rollback]
  two_person: [drain]
  approval_expires: 10m
  kill_switch_file: /nowhere/stop
  breaker: {window: 30m, max_unsuccessful: 5, max_unsuccessful_ratio: 0.4, recovers_within: 5m}
"""


def load(tmp_path, text):
    path = tmp_path / "outrider.yaml"
    path.write_text(text, encoding="utf-8")
    return settings.load(path)


def problems(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return [(problem.line, problem.key, problem.message) for problem in caught.value.problems]


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_without_settings_every_step_waits_for_approval_as_a_dry_run(tmp_path):
    policy = wiring.policy(load(tmp_path, "cluster: c\n"))
    assert policy == replace(Policy(), time_limits={ActionKind.DRAIN: timedelta(minutes=20)})
    assert (policy.autonomy.general, policy.dry_run) == (Autonomy.APPROVE, True)


def test_all_settings_reach_the_policy(tmp_path):
    policy = wiring.policy(load(tmp_path, FULL))
    assert policy.autonomy.playbooks == {"engine-hung": Autonomy.ACT, "plan": Autonomy.RECOMMEND}
    assert policy.autonomy.services == {"chat": Autonomy.OBSERVE}
    assert policy.autonomy.environments == {"prod": Autonomy.APPROVE}
    assert policy.environments == {"prod": Environment(("eu-1",), ("prod-*",))}
    assert policy.disruptive == {ActionKind.DRAIN, ActionKind.ROLLBACK}
    assert policy.two_person == {ActionKind.DRAIN}
    assert policy.approval_expires == timedelta(minutes=10)
    assert policy.breaker.max_unsuccessful == 5
    assert policy.breaker.recovers_within == timedelta(minutes=5)
    (nightly,), (holidays,) = policy.maintenance_windows, policy.freezes
    assert nightly.contains(at("2026-11-21T14:00"))  # Saturday 22:00 in Shanghai
    assert nightly.contains(at("2026-11-21T15:59"))
    assert not nightly.contains(at("2026-11-21T16:00"))
    assert (nightly.services, holidays.environments) == ({"chat"}, {"prod"})
    assert holidays.contains(at("2026-12-23T23:00"))  # midnight in Berlin
    assert not holidays.contains(at("2026-12-27T05:00"))


@pytest.mark.parametrize("text", ['"22:00"', "22:00", '"22:00:00"'])
def test_a_time_of_day_needs_no_quotes(tmp_path, text):
    given = f"remediation:\n  freezes: [{{name: f, start: {text}, end: '23:00'}}]\n"
    (freeze,) = wiring.policy(load(tmp_path, given)).freezes
    assert freeze.contains(at("2026-11-23T22:00"))
    assert not freeze.contains(at("2026-11-23T21:59"))


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("autonomy: suggest", "remediation.autonomy", "observe"),
        ("autonomy_for: {playbooks: {gpu-lots: act}}", "autonomy_for.playbooks.gpu-lots", 'did you mean "gpu-lost"'),
        ("autonomy_for: {environments: {prod: act}}", "autonomy_for.environments.prod", "remediation.environments"),
        ("autonomy_for: {services: {chat: off}}", "autonomy_for.services.chat", "observe"),
        ("two_person: [explode]", "two_person[0]", "drain"),
        ("freezes: [{name: f, start: '1:99', end: '2:00'}]", "freezes[0].start", "22:00"),
        ("freezes: [{name: f, start: '22:00', end: 2026-12-27}]", "freezes[0]", "both"),
        ("freezes: [{name: f, start: 2026-12-27, end: 2026-12-24}]", "freezes[0]", "after start"),
        ("freezes: [{name: f, start: 2026-12-24, end: 2026-12-27, days: [mon]}]", "freezes[0]", "days"),
        ("freezes: [{name: f, start: '2026-12-24T00:00:00+01:00', end: 2026-12-27}]", "freezes[0].start", "timezone"),
        ("freezes: [{name: f, timezone: Mars/Base, start: '1:00', end: '2:00'}]", "freezes[0].timezone", "Shanghai"),
        ("freezes: [{name: f, start: '01:00', end: '02:00', environments: [prd]}]", "environments.prd", "named 'prd'"),
        ("breaker: {max_unsuccessful_ratio: 2}", "breaker.max_unsuccessful_ratio", "1"),
        ("actuator: simulated", "remediation.control_url", "required"),
    ],
)
def test_mistakes_have_line_and_key(tmp_path, text, key, message):
    found = problems(tmp_path, f"cluster: c\nremediation:\n  {text}\n")
    assert any(line == 3 or key.endswith("control_url") for line, _, _ in found)
    assert any(where.endswith(key) and message in shown for _, where, shown in found), found


def test_own_playbooks_replace_packaged_ones_by_fault(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        "playbooks:\n  gpu-lost:\n    none: call us\n  disk-slow:\n    steps: [{action: cordon, target: node}]\n"
    )
    books = wiring.playbooks(load(tmp_path, f"remediation: {{playbooks: ['{own}']}}\n"))
    assert (books["gpu-lost"].steps, books["gpu-lost"].none) == ((), "call us")
    assert [step.kind for step in books["disk-slow"].steps] == [ActionKind.CORDON]
    assert books["engine-hung"].steps, "the packaged ones stay"


def test_mistakes_in_own_playbooks_have_their_file_line_and_key(tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("playbooks:\n  gpu-lost: {steps: [{action: explode, target: node}]}\n  node-lost: {steps: []}\n")
    second.write_text("playbooks:\n  node-lost: {steps: []}\n")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"remediation: {{playbooks: ['{first}', '{second}', '{tmp_path}/third.yaml']}}\n")
    found = [(problem.file, problem.line, problem.key) for problem in caught.value.problems]
    assert (str(first), 2, "playbooks.gpu-lost.steps[0].action") in found
    assert (str(second), 2, "playbooks.node-lost") in found


def test_a_missing_playbook_file_has_the_line_that_names_it(tmp_path):
    first = tmp_path / "first.yaml"
    first.write_text("playbooks:\n  gpu-lost: {none: call us}\n")
    text = f"remediation:\n  playbooks:\n  - {first}\n  - {tmp_path}/absent.yaml\n"
    (found,) = problems(tmp_path, text)
    assert found == (4, "remediation.playbooks[1]", f"{tmp_path}/absent.yaml does not exist")


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("actuators: {drain: k8s}", "actuators.drain", "kubernetes"),
        ("actuators: {drain: Kubernetes}", "actuators.drain", "kubernetes"),
        ("actuators: {cordn: kubernetes}", "actuators.cordn", "cordon"),
        ("actuator: simulation", "actuator", "simulated"),
        ("two_person: [rollbak]", "two_person[0]", "rollback"),
        ("disruptive: [drian]", "disruptive[0]", "drain"),
        ("hooks: {reset_gpus: {job: {image: x}}}", "hooks.reset_gpus", "reset_gpu"),
        ("autonomy: aprove", "autonomy", "approve"),
        ("traffic: {routes: {chat: {kind: httproute}}}", "routes.chat.kind", "http_route"),
    ],
)
def test_a_misspelt_choice_has_one_line_with_the_nearest_one(tmp_path, text, key, near):
    (found,) = problems(tmp_path, f"cluster: c\nremediation:\n  {text}\n")
    assert found[0] == 3
    assert found[1].endswith(key)
    assert found[2].endswith(f'; did you mean "{near}"?')
    assert "<" not in found[2], "the choices are the words of the file"


def test_a_playbook_file_that_is_not_yaml_is_named(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("playbooks: [\n")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"remediation: {{playbooks: ['{own}']}}\n")
    assert {problem.file for problem in caught.value.problems} == {str(own)}
