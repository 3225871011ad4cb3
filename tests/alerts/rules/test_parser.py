from datetime import timedelta
from pathlib import Path

import pytest

from alerts.rules.files import load_entries, load_rules
from outrider.errors import ConfigError, UsageError
from outrider.model import ActionKind, EntityKind, Priority
from outrider.text.i18n import LANGUAGES, texts
from outrider.vocabulary import catalog
from outrider.vocabulary.faults import faults
from outrider.vocabulary.rules import AbsentPolicy

ROOT = Path(__file__).parents[3]


def by_name(paths=None):
    return {rule.name: rule for rule in load_rules(paths)}


def problems_of(tmp_path, text):
    file = tmp_path / "rules.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_rules([file])
    return [(problem.line, problem.key, problem.message) for problem in caught.value.problems]


def test_every_fault_of_the_vocabulary_is_matched_by_exactly_one_rule():
    matched = [fault for rule in load_rules() for fault in rule.faults]
    assert sorted(matched) == sorted(faults())


def test_defaults_of_the_service():
    rules = by_name()
    availability = rules["availability-low"]
    assert (availability.priority, availability.kind) == (Priority.P0, EntityKind.SERVICE)
    assert availability.answer_within == timedelta(minutes=5)
    assert availability.routes == ("phone", "sms", "im")
    assert "< 0.99" in availability.expr
    ttft = rules["ttft-p99-high"]
    assert (ttft.priority, ttft.answer_within, ttft.routes) == (Priority.P1, timedelta(minutes=15), ("im",))
    memory = rules["gpu-memory-high"]
    assert (memory.priority, memory.wait, memory.routes) == (Priority.P2, timedelta(minutes=10), ("im", "mail"))
    assert memory.answer_within == timedelta(hours=1)
    assert "greatest(0.9, last(engine_memory_reserved_ratio) + 0.05)" in memory.expr
    growth = rules["weekly-growth"]
    assert (growth.priority, growth.threshold, growth.routes) == (Priority.P3, 0.2, ("report",))
    assert rules["gpu-lost"].priority is None, "gpu-lost takes the pair of its fault"
    assert rules["monitor-blind"].priority is Priority.P0
    assert rules["anomaly"].priority is Priority.P3
    assert rules["anomaly"].wait == timedelta(minutes=30)


def test_only_the_slo_of_the_service_is_service_level():
    assert {rule.name for rule in load_rules() if rule.service_level} == {"availability-low", "ttft-p99-high"}


def test_every_rule_has_texts_in_both_languages_and_a_runbook():
    for rule in (entry.rule for entry in load_entries()):
        for language in LANGUAGES:
            known = texts(language)
            assert f"alerts.{rule.name}.name" in known
            assert rule.default_action_text in known, rule.name
        assert rule.runbook == f"docs/runbooks/{rule.name}.md"
        assert (ROOT / rule.runbook).read_text(encoding="utf-8").startswith("# ")


def test_load_faults_never_restart_by_default():
    for rule in load_rules():
        if {"traffic-surge", "kv-pressure"} & {*rule.faults, rule.fault}:
            assert ActionKind.RESTART_POD not in rule.then


def test_a_user_file_changes_a_rule_by_name_and_keeps_the_rest(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "rules:\n"
        "  - name: ttft-p99-high\n    wait: 3m\n    priority: P2\n"
        "  - name: anomaly\n    enabled: false\n"
        "  - name: hot-node\n    kind: node\n    expr: last(node_cpu_utilization_ratio) > 0.95\n    priority: P3\n",
        encoding="utf-8",
    )
    before, rules = by_name(), by_name([file])
    assert rules["ttft-p99-high"].wait == timedelta(minutes=3)
    assert rules["ttft-p99-high"].priority is Priority.P2
    assert rules["ttft-p99-high"].expr == before["ttft-p99-high"].expr
    assert "anomaly" not in rules
    assert rules["hot-node"].kind is EntityKind.NODE
    assert len(rules) == len(before)


def test_rules_of_a_pack_are_off_until_one_setting_switches_them_on(tmp_path):
    packs = {entry.rule.name: entry.pack for entry in load_entries()}
    assert {"thresholds", "quality"} <= set(packs.values())
    assert not {name for name, pack in packs.items() if pack} & set(by_name())
    of_pack = {rule.name for rule in load_rules(enable=["thresholds"])} - set(by_name())
    assert of_pack == {name for name, pack in packs.items() if pack == "thresholds"}
    assert {rule.name for rule in load_rules(enable=["aborts-high"])} - set(by_name()) == {"aborts-high"}
    file = tmp_path / "mine.yaml"
    file.write_text(
        "rules:\n  - {name: aborts-high, enabled: true, wait: 1m}\n  - {name: latency-p99-high, wait: 9m}\n"
    )
    assert by_name([file])["aborts-high"].wait == timedelta(minutes=1)
    assert "latency-p99-high" not in by_name([file]), "a changed rule stays off"


def test_a_rule_that_is_on_replaces_another():
    rules = {rule.name: rule for rule in load_rules(enable=["gpu-lost-p0"])}
    assert "gpu-lost" not in rules
    assert rules["gpu-lost-p0"].priority is Priority.P0
    assert {entry.rule.name: entry.enabled for entry in load_entries()}["gpu-lost"]


def test_a_file_of_the_operator_may_be_a_pack(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("pack: nights\nrules:\n  - {name: hot, kind: node, expr: node_cpu_utilization_ratio > 0.9}\n")
    assert "hot" not in by_name([file])
    assert "hot" in {rule.name for rule in load_rules([file], ["nights"])}


def test_an_unknown_switch_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError) as caught:
        load_rules(enable=["threshold"])
    assert 'did you mean "thresholds"' in caught.value.message


def test_no_pack_has_the_name_of_a_rule():
    entries = load_entries()
    assert not {entry.pack for entry in entries} & {entry.rule.name for entry in entries}


def test_with_every_pack_each_fault_is_still_matched_by_exactly_one_rule():
    packs = sorted({entry.pack for entry in load_entries() if entry.pack})
    matched = [fault for rule in load_rules(enable=packs) for fault in rule.faults]
    assert sorted(matched) == sorted(faults())


def test_mistakes_of_a_file_are_reported_in_line_order_with_the_expectation(tmp_path):
    found = problems_of(
        tmp_path,
        "rules:\n"
        "  - name: Bad Name\n"
        "    kind: gpus\n"
        "    expr: last(hw_accel_tempreature_celsius) > 90\n"
        "    wait: soon\n"
        "  - name: other\n"
        "    faults: [gpu-lots]\n"
        "    priority: P9\n"
        "    routs: [im]\n"
        "  - name: neither\n",
    )
    assert [line for line, _, _ in found] == sorted(line for line, _, _ in found)
    messages = {key: message for _, key, message in found}
    assert "hyphens" in messages["rules[0].name"]
    assert 'did you mean "gpu"' in messages["rules[0].kind"]
    assert 'did you mean "hw_accel_temperature_celsius"' in messages["rules[0].expr"]
    assert "15s, 5m" in messages["rules[0].wait"]
    assert 'did you mean "gpu-lost"' in messages["rules[1].faults"]
    assert "expected one of P0, P1, P2, P3" in messages["rules[1].priority"]
    assert 'did you mean "routes"' in messages["rules[1].routs"]
    assert "needs either expr" in messages["rules[2].name"]


@pytest.mark.parametrize(
    ("rule", "key", "expected"),
    [
        ("{name: a, expr: 'last(node_ready) <', kind: node}", "expr", "cannot be read"),
        ("{name: a, expr: 'lst(node_ready) < 1', kind: node}", "expr", "unknown function"),
        ("{name: a, expr: 'last(node_ready) < 1'}", "kind", "is missing"),
        ("{name: a, faults: gpu-lost}", "faults", "expected a list"),
        ("{name: a, faults: [gpu-lost], enabled: 'no'}", "enabled", "true or false"),
        ("{name: a, detectors: ['plan:x']}", "detectors", "threshold"),
        ("{name: a, detectors: ['plan:x'], threshold: much}", "threshold", "expected a number"),
        ("{name: a, faults: [gpu-lost], then: [reboot]}", "then", "unknown then"),
        ("{name: a, faults: [gpu-lost], then: [uncordon]}", "then", "unknown then"),
        ("{name: a, faults: [gpu-lost], routes: [pigeon]}", "routes", "unknown routes"),
        ("{name: a, faults: [gpu-lost], fault: nothing}", "fault", "unknown fault"),
        ("{name: a, faults: [gpu-lost], labels: 3}", "labels", "mapping"),
        ("{name: a, faults: [gpu-lost], instead_of: gpu-lost}", "instead_of", "expected a list"),
        ("{name: a, faults: [gpu-lost], instead_of: [{a: 1}]}", "instead_of", "a list of texts"),
        ("{name: a, faults: [gpu-lost], instead_of: [gpu-lst]}", "instead_of", 'did you mean "gpu-lost"'),
        ("{name: a, faults: [gpu-lost], instead_of: [a]}", "instead_of", "no other rule is named"),
        ("{name: a, kind: node, expr: node_ready < 1, where: vip}", "where", "expected a mapping"),
        ("{name: a, kind: node, expr: node_ready < 1, where: {name: 3}}", "where", "a text or a list of texts"),
        ("{name: a, kind: node, expr: node_ready < 1, where: {name: []}}", "where", "a text or a list of texts"),
        ("{name: a, kind: node, expr: node_ready < 1, where: {request_class: x}}", "where", "vip, online or long"),
        ("{name: a, faults: [gpu-lost], where: {name: x}}", "where", "needs a rule with expr"),
        ("{name: a, faults: [gpu-lost], absent: fire}", "absent", "needs a rule with expr"),
        ("{name: a, faults: [gpu-lost], absent: drop}", "absent", "keep, fire or {resolve_after"),
        ("{name: a, faults: [gpu-lost], absent: {after: 3m}}", "absent", "keep, fire or {resolve_after"),
        ("{name: a, faults: [gpu-lost], absent: {resolve_after: soon}}", "absent", "15s, 5m"),
    ],
)
def test_each_key_is_checked(tmp_path, rule, key, expected):
    found = problems_of(tmp_path, f"rules:\n  - {rule}\n")
    assert any(where.endswith(key) and expected in message and line == 2 for line, where, message in found), found


def test_the_policy_for_missing_values_is_read(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "rules:\n"
        "  - {name: gpu-lost, absent: {resolve_after: 10m}}\n"
        "  - {name: kv-cache-full, absent: fire}\n"
        "  - {name: gpu-memory-high, absent: keep}\n",
        encoding="utf-8",
    )
    rules = by_name([file])
    assert (rules["gpu-lost"].absent, rules["gpu-lost"].resolve_after) == (AbsentPolicy.RESOLVE, timedelta(minutes=10))
    assert rules["kv-cache-full"].absent is AbsentPolicy.FIRE
    assert {rules[name].absent for name in ("gpu-memory-high", "node-lost")} == {AbsentPolicy.KEEP}


def test_the_name_of_a_pack_is_checked(tmp_path):
    assert problems_of(tmp_path, "pack: [a]\nrules: []\n")[0][:2] == (1, "pack")


@pytest.mark.parametrize("text", ["", "- a\n", "rules: 3\n", "rules:\n  - just a text\n", "rules: [{name: x\n"])
def test_a_file_of_the_wrong_shape_is_one_clear_error(tmp_path, text):
    assert problems_of(tmp_path, text)


def test_two_rules_of_one_name_in_one_file_are_refused(tmp_path):
    found = problems_of(tmp_path, "rules:\n- {name: a, faults: [gpu-lost]}\n- {name: a, faults: [gpu-lost]}\n")
    assert [line for line, _, _ in found] == [3]


def test_expressions_name_signals_of_the_catalogue_only():
    named = {signal for rule in load_rules() if rule.expr for signal in catalog.signals() if signal in rule.expr}
    assert {"svc_ttft_seconds", "hw_accel_memory_used_ratio", "engine_kv_cache_usage_ratio"} <= named
