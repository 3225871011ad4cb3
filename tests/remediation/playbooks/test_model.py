import pytest

from outrider.errors import ConfigError
from outrider.model import ActionKind
from outrider.text import yaml_file
from remediation.playbooks.files import packaged
from remediation.playbooks.model import LOAD_FAULTS, RESTARTING, read


def problems_of(text):
    with pytest.raises(ConfigError) as caught:
        read([yaml_file.parse(text, "playbooks.yaml")])
    return [(problem.line, problem.key, problem.message) for problem in caught.value.problems]


def test_no_packaged_playbook_restarts_an_engine_under_load():
    for fault in LOAD_FAULTS & set(packaged()):
        assert not packaged()[fault].kinds & RESTARTING


def test_every_drain_needs_approval_and_adds_capacity_first():
    drains = [step for book in packaged().values() for step in book.steps if step.kind is ActionKind.DRAIN]
    assert drains
    assert all(step.ask and step.surge and step.after_done for step in drains)


def test_a_playbook_file_gives_steps_by_fault():
    text = "playbooks:\n  gpu-lost:\n    steps:\n    - {action: cordon, target: node}\n"
    books = read([yaml_file.parse(text, "mine.yaml")])
    assert [step.kind for step in books["gpu-lost"].steps] == [ActionKind.CORDON]


@pytest.mark.parametrize(
    ("text", "key", "fragment"),
    [
        ("playbooks:\n  gpu-lots: {steps: []}\n", "playbooks.gpu-lots", 'did you mean "gpu-lost"'),
        ("playbooks:\n  gpu-lost: {step: []}\n", "playbooks.gpu-lost.step", 'did you mean "steps"'),
        ("playbooks:\n  gpu-lost: {steps: [{action: explode, target: node}]}\n", ".action", "expected one of"),
        ("playbooks:\n  gpu-lost: {steps: [{action: uncordon, target: node}]}\n", ".action", "expected one of"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: rack}]}\n", ".target", "expected one of"),
        (
            "playbooks:\n  traffic-surge: {steps: [{action: degrade_service, target: services}]}\n",
            ".action",
            "remediation.degrade",
        ),
        (
            "playbooks:\n  gateway-fault: {steps: [{action: switch_cluster, target: services}]}\n",
            ".action",
            "remediation.cluster_switch",
        ),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, wait: long}]}\n", ".wait", "30s"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, after: lunch}]}\n", ".after", "done"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, hurry: 1}]}\n", ".hurry", "unknown key"),
        ("playbooks:\n  gpu-lost: {steps: [cordon]}\n", "steps[0]", "expected a step"),
        ("playbooks:\n  gpu-lost: cordon\n", "gpu-lost", "expected {"),
        ("playbooks:\n  gpu-lost: {serving: false}\n", "gpu-lost", "either steps or none"),
        ("playbooks:\n  gpu-lost: {none: ''}\n", ".none", "the reason"),
        ("playbooks:\n  gpu-lost: {serving: 1, none: x}\n", ".serving", "true or false"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, require: calm}]}\n", ".require", "a list"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, require: [calm]}]}\n", "[0]", "unknown"),
        (
            "playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, require: [replicas_ready]}]}\n",
            "[0]",
            "unknown condition",
        ),
        (
            "playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, require: [{replicas_at_least: no}]}]}\n",
            "[0]",
            "a number of replicas",
        ),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, verify: cordond}]}\n", ".verify", "cordoned"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, timeout: 2m}]}\n", ".timeout", "verify"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, escalate: up}]}\n", ".escalate", "page"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, undo: none}]}\n", ".undo", "always return"),
        ("playbooks:\n  gpu-lost: {steps: [{action: scale, target: self, undo: uncordon}]}\n", ".undo", "no undo"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, attempts: 0}]}\n", ".attempts", "from 1"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, ask: 1}]}\n", ".ask", "true or false"),
        ("playbooks: []\n", "playbooks", "by fault"),
        ("", "playbooks", "by fault"),
        (
            "playbooks:\n  kv-pressure: {steps: [{action: restart_pod, target: pods}]}\n",
            ".action",
            "must not be restarted",
        ),
    ],
)
def test_an_invalid_playbook_is_reported_with_line_and_key(text, key, fragment):
    found = problems_of(text)
    assert any(where.endswith(key) and (fragment in message or "15s" in message) for _, where, message in found), found


@pytest.mark.parametrize(
    ("step", "key", "message"),
    [
        ("{action: cordon, target: node, after: soon}", "after", "expected done"),
        ("{action: cordon, target: rack}", "target", "expected one of"),
    ],
)
def test_a_bad_value_of_a_step_is_named(step, key, message):
    ((_, path, text),) = problems_of(f"playbooks:\n  gpu-lost:\n    steps:\n    - {step}\n")
    assert path.endswith(key)
    assert message in text
