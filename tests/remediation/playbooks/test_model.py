import pytest

from outrider.errors import ConfigError
from outrider.model import ActionKind
from remediation.playbooks.model import LOAD_FAULTS, load_playbooks, packaged


def problems_of(tmp_path, text):
    file = tmp_path / "playbooks.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_playbooks([file])
    return [(problem.line, problem.key, problem.message) for problem in caught.value.problems]


def test_no_packaged_playbook_restarts_an_engine_under_load():
    for fault in LOAD_FAULTS & set(packaged()):
        assert {step.kind for step in packaged()[fault].steps} <= {ActionKind.SCALE}


def test_every_drain_asks_and_makes_capacity_first():
    drains = [step for book in packaged().values() for step in book.steps if step.kind is ActionKind.DRAIN]
    assert drains
    assert all(step.ask and step.surge and step.after_done for step in drains)


def test_a_file_of_the_user_replaces_the_playbook_of_a_fault(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("playbooks:\n  gpu-lost:\n    steps:\n    - {action: cordon, target: node}\n", encoding="utf-8")
    books = load_playbooks([file])
    assert [step.kind for step in books["gpu-lost"].steps] == [ActionKind.CORDON]
    assert books["engine-hung"] == packaged()["engine-hung"]


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("playbooks:\n  gpu-lots: {steps: []}\n", "playbooks.gpu-lots", 'did you mean "gpu-lost"'),
        ("playbooks:\n  gpu-lost: {step: []}\n", "playbooks.gpu-lost.step", 'did you mean "steps"'),
        ("playbooks:\n  gpu-lost: {steps: [{action: explode, target: node}]}\n", ".action", "expected one of"),
        ("playbooks:\n  gpu-lost: {steps: [{action: uncordon, target: node}]}\n", ".action", "expected one of"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: rack}]}\n", ".target", "expected one of"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, wait: long}]}\n", ".wait", "30s"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, after: lunch}]}\n", ".after", "done"),
        ("playbooks:\n  gpu-lost: {steps: [{action: cordon, target: node, hurry: 1}]}\n", ".hurry", "unknown key"),
        ("playbooks:\n  gpu-lost: {steps: [cordon]}\n", "steps[0]", "expected a step"),
        ("playbooks:\n  gpu-lost: cordon\n", "gpu-lost", "expected {"),
        ("playbooks: []\n", "playbooks", "by fault"),
        ("", "playbooks", "by fault"),
        ("playbooks:\n  kv-pressure: {steps: [{action: restart_pod, target: pods}]}\n", ".action", "never restarted"),
    ],
)
def test_a_faulty_playbook_is_told_with_line_and_key(tmp_path, text, key, says):
    found = problems_of(tmp_path, text)
    assert any(where.endswith(key) and (says in message or "15s" in message) for _, where, message in found), found
