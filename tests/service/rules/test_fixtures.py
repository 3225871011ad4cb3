"""Test files of alert rules: their mistakes, and alerts as the cycle raises them."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from alerts.rules.files import load_entries
from outrider.errors import ConfigError
from service.config.settings import Settings
from service.rules import fixture_file, fixture_run

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "tests" / "alerts" / "rules" / "fixtures").glob("*.yaml"))
RULE = "{name: mine, kind: replica, expr: engine_requests_waiting > 10, wait: 1m, clear: 30s, priority: P2}"
GOOD = """\
rule_files: [rules.yaml]
tests:
  - input_series:
      - series: 'engine_requests_waiting{replica="r0", namespace="llm"}'
        values: '20x20'
    alert_rule_test:
      - eval_time: 5m
        alertname: mine
        exp_alerts:
          - exp_labels: {replica: r0, namespace: llm, priority: P2}
"""


@pytest.fixture
def results(tmp_path):
    def run(text, rules=f"rules: [{RULE}]\n", settings=None):
        (tmp_path / "rules.yaml").write_text(rules, encoding="utf-8")
        file = tmp_path / "test.yaml"
        file.write_text(text, encoding="utf-8")
        return fixture_run.run(fixture_file.read(file, settings or Settings()))

    return run


@pytest.fixture
def problems(results):
    def read(text, **more):
        with pytest.raises(ConfigError) as caught:
            results(text, **more)
        return [(problem.line, problem.key, problem.message) for problem in caught.value.problems]

    return read


# --- the packaged rules ---------------------------------------------------------------------------


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_packaged_rules_fire_as_their_fixtures_expect(file):
    for result in fixture_run.run(fixture_file.read(file, Settings())):
        assert result.differences == (), f"{file.name}:{result.check.line}"


def test_every_packaged_rule_has_a_fixture_that_makes_it_fire_and_one_that_does_not():
    checks = [
        (file.name, check)
        for file in SHIPPED
        for test in fixture_file.read(file, Settings()).tests
        for check in test.checks
    ]
    for entry in load_entries():
        of_file = Path(entry.document.file).name
        mine = [check for name, check in checks if name == of_file and check.alertname == entry.rule.name]
        assert any(check.expected for check in mine), f"{entry.rule.name} never fires"
        assert any(not check.expected for check in mine), f"{entry.rule.name} always fires"


def test_every_fault_of_a_packaged_rule_is_in_a_fixture():
    series = [item for file in SHIPPED for test in fixture_file.read(file, Settings()).tests for item in test.series]
    known = {item.labels.get("fault") for item in series}
    assert {fault for entry in load_entries() for fault in entry.rule.faults} <= known


def test_the_example_of_the_guide_passes(results):
    page = (ROOT / "docs" / "howto" / "write-alert-rules.md").read_text(encoding="utf-8")
    blocks = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    rules = next(block for block in blocks if "name: queue-long\n" in block)
    test = next(block for block in blocks if "rule_files: [my-rules.yaml]" in block)
    checked = results(test.replace("my-rules.yaml", "rules.yaml"), rules=rules)
    assert [result.differences for result in checked] == [(), ()]


# --- what a check compares ------------------------------------------------------------------------


def test_a_test_passes_if_exactly_the_expected_alerts_fire(results):
    (result,) = results(GOOD)
    assert result.differences == ()
    assert [fixture_run.labels_of(alert)["replica"] for alert in result.found] == ["r0"]


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("priority: P2", "priority: P1", "mine on replica/llm/r0: priority is P2, expected P1"),
        ("priority: P2", "team: a", "mine on replica/llm/r0: team is absent, expected a"),
        ("{replica: r0", "{replica: r1", "mine on replica/llm/r1 is missing"),
        ("20x20", "1x20", "mine on replica/llm/r0 is missing"),
        ("namespace: llm, priority", "priority", "mine on replica/r0 is missing"),
    ],
)
def test_every_difference_is_named(results, old, new, difference):
    (result,) = results(GOOD.replace(old, new))
    assert difference in result.differences


def test_an_unexpected_alert_fails_the_test(results):
    (result,) = results(GOOD[: GOOD.index("        exp_alerts")])
    assert result.differences == ("mine on replica/llm/r0 is unexpected",)


def test_a_pending_alert_is_checked_on_demand(results):
    (result,) = results(
        GOOD.replace("eval_time: 5m", "eval_time: 30s").replace(
            "alertname: mine", "alertname: mine\n        state: pending"
        )
    )
    assert result.differences == ()


def test_without_an_alertname_every_rule_counts(results):
    text = GOOD.replace("        alertname: mine\n", "").replace("{replica: r0", "{alertname: mine, replica: r0")
    assert results(text)[0].differences == ()
    series = "      - {series: 'node_ready{node=\"n1\"}', values: '0x20'}\n    alert_rule_test"
    (result,) = results(text.replace("    alert_rule_test", series))
    assert result.differences == ("node-not-ready on node/n1 is unexpected",)


def test_a_stale_value_keeps_an_alert_and_a_good_one_ends_it(results):
    text = GOOD.replace("20x20", "20x10 stale stale stale stale 1x3").replace("5m", "3m30s")
    assert results(text)[0].differences == ()
    assert results(text.replace("3m30s", "4m15s"))[0].found == ()


def test_the_policy_for_missing_values_can_be_tested(results):
    text = GOOD.replace("20x20", "1x10 _x30").replace("5m", "10m")
    assert results(text)[0].found == ()
    (result,) = results(text, rules=f"rules: [{RULE.replace('wait: 1m', 'wait: 1m, absent: fire')}]\n")
    assert result.differences == ()


@pytest.mark.parametrize(
    ("where", "fires"),
    [
        ("{name: r0}", {"r0"}),
        ("{name: [r0, r2]}", {"r0", "r2"}),
        ("{namespace: llm}", {"r0", "r1"}),
        ("{cluster: default, namespace: [llm, lab]}", {"r0", "r1", "r2"}),
        ("{request_class: vip}", {"r0", "r1"}),
        ("{request_class: [vip online]}", {"r0"}),
        ("{request_class: [batch, interactive]}", {"r0", "r1", "r2"}),
        ("{tenant: acme}", {"r2"}),
        ("{tenant: nobody}", set()),
        ('{name: ["!r0", "!r3"]}', {"r1", "r2"}),
        ('{namespace: [llm, "!lab"], name: "!r0"}', {"r1"}),
    ],
)
def test_a_rule_may_cover_only_some_entities(results, where, fires):
    test = """\
rule_files: [rules.yaml]
tests:
  - facts:
      - {entity: '{replica="r0", namespace="llm"}', labels: {request_class: vip-online}}
      - {entity: '{replica="r1", namespace="llm"}', labels: {request_class: vip-offline}}
      - {entity: '{replica="r2", namespace="lab"}', labels: {request_class: standard-online, tenant: acme}}
    input_series:
      - {series: 'engine_requests_waiting{replica="r0", namespace="llm"}', values: '20x20'}
      - {series: 'engine_requests_waiting{replica="r1", namespace="llm"}', values: '20x20'}
      - {series: 'engine_requests_waiting{replica="r2", namespace="lab"}', values: '20x20'}
      - {series: 'engine_requests_waiting{replica="r3"}', values: '20x20'}
    alert_rule_test: [{eval_time: 5m, alertname: mine}]
"""
    (result,) = results(test, rules=f"rules: [{RULE.replace('wait: 1m', f'wait: 1m, where: {where}')}]\n")
    assert {alert.entity.name for alert in result.found} == fires


def test_missing_values_fire_only_for_entities_that_the_rule_covers(results):
    text = GOOD.replace("20x20", "1x10 _x30").replace("5m", "10m")
    for name, fires in (("r0", True), ("other", False)):
        more = f"wait: 1m, absent: fire, where: {{name: {name}}}"
        (result,) = results(text, rules=f"rules: [{RULE.replace('wait: 1m', more)}]\n")
        assert bool(result.found) is fires


def test_slos_and_kpis_can_be_tested(results):
    (slo, kpi) = results(
        """\
rule_files: [rules.yaml]
slos: [{name: answers, objective: 0.99}]
interval: 1m
tests:
  - input_series:
      - {series: 'svc_requests_total{service="chat"}', values: '100x90'}
      - {series: 'svc_failed_total{service="chat"}', values: '0x59 60x30'}
      - {series: 'kpi_orders{service="chat"}', values: '2x90'}
    alert_rule_test:
      - eval_time: 80m
        alertname: slo-answers
        exp_alerts:
          - exp_labels: {service: chat, priority: P1}
      - eval_time: 80m
        alertname: few-orders
        exp_alerts:
          - exp_labels: {service: chat}
""",
        rules="rules: [{name: few-orders, kind: service, expr: last(kpi_orders) < 3}]\n",
    )
    assert (slo.differences, kpi.differences) == ((), ())


CLASSES = """\
slos:
  - {name: vip, objective: 0.99, where: {request_class: vip}}
  - {name: batch, objective: 0.99, where: {request_class: batch}}
interval: 1m
tests:
  - services:
      - {entity: '{replica="r0"}', service: '{service="chat"}'}
      - {entity: '{replica="r1"}', service: '{service="chat"}'}
      - {entity: '{replica="r2"}', service: '{service="chat"}'}
    facts:
      - {entity: '{replica="r0"}', labels: {request_class: vip-online}}
      - {entity: '{replica="r1"}', labels: {request_class: vip-online}}
      - {entity: '{replica="r2"}', labels: {request_class: standard-offline}}
    input_series:
      - {series: 'TOTAL{replica="r0"}', values: '100x90'}
      - {series: 'FAILED{replica="r0"}', values: '0x90'}
      - {series: 'TOTAL{replica="r1"}', values: '100x90'}
      - {series: 'FAILED{replica="r1"}', values: '0x59 90x30'}
      - {series: 'TOTAL{replica="r2"}', values: '9000x90'}
      - {series: 'FAILED{replica="r2"}', values: '0x90'}
    alert_rule_test:
      - {eval_time: 50m, alertname: slo-vip}
      - eval_time: 80m
        alertname: slo-vip
        exp_alerts: [{exp_labels: {service: chat, priority: P1}}]
      - {eval_time: 80m, alertname: slo-batch}
"""


@pytest.mark.parametrize(
    ("total", "failed"),
    [
        ("engine_http_requests_total", "engine_http_failed_total"),
        ("engine_requests_finished_total", "engine_requests_failed_total"),
    ],
    ids=["http", "engine"],
)
def test_the_budget_of_a_class_is_that_of_its_replicas(results, total, failed):
    for result in results(CLASSES.replace("TOTAL", total).replace("FAILED", failed)):
        assert result.differences == ()


def test_each_tenant_has_a_budget_of_its_own(results):
    test = """\
slos: [{name: tenants, objective: 0.99, tenant: "*"}]
interval: 1m
tests:
  - input_series:
      - {series: 'tenant_requests_total{tenant="chat/acme"}', values: '100x90'}
      - {series: 'tenant_failed_total{tenant="chat/acme"}', values: '0x59 60x30'}
      - {series: 'tenant_requests_total{tenant="chat/fine"}', values: '9000x90'}
      - {series: 'tenant_failed_total{tenant="chat/fine"}', values: '0x90'}
      - {series: 'tenant_requests_total{tenant="chat/none"}', values: '100x90'}
      - {series: 'tenant_failed_total{tenant="chat/none"}', values: '90x90'}
    alert_rule_test:
      - {eval_time: 50m, alertname: slo-tenants}
      - eval_time: 80m
        alertname: slo-tenants
        exp_alerts: [{exp_labels: {tenant: chat/acme, priority: P1}}]
"""
    for result in results(test):
        assert result.differences == ()


def test_the_rules_of_the_configuration_are_tested(results, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(f"rules: [{RULE}]\n", encoding="utf-8")
    settings = Settings.model_validate({"rules": {"files": [str(own)]}})
    (result,) = results(GOOD.removeprefix("rule_files: [rules.yaml]\n"), settings=settings)
    assert result.differences == ()


# --- mistakes -------------------------------------------------------------------------------------


INPUT, CHECK, EXPECTED = "input_series[0]", "alert_rule_test[0]", "alert_rule_test[0].exp_alerts[0]"


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "message"),
    [
        ("engine_requests_waiting{", "engine_request_waiting{", 4, f"{INPUT}.series", "there is no signal"),
        ('namespace="llm"', 'name="llm"', 4, f"{INPUT}.series", "unknown label name"),
        ('replica="r0", ', "", 4, f"{INPUT}.series", "a kind of entity"),
        ("'20x20'", "0x20", 5, f"{INPUT}.values", "a text in quotes"),
        ("20x20", "20*20", 5, f"{INPUT}.values", "word 1: expected 5, 5x3"),
        ("values:", "vals:", 5, f"{INPUT}.vals", 'did you mean "values"'),
        ("5m", "soon", 7, f"{CHECK}.eval_time", "15s, 5m"),
        ("5m", "90d", 7, f"{CHECK}.eval_time", "more than 50,000 intervals"),
        ("eval_time: 5m\n        ", "", 7, f"{CHECK}.eval_time", "is missing"),
        ("alertname: mine", "alertname: mein", 8, f"{CHECK}.alertname", 'did you mean "mine"'),
        ("alertname: mine", "alertname: aborts-high", 8, f"{CHECK}.alertname", "is off or replaced"),
        ("alertname: mine", "state: gone", 8, f"{CHECK}.state", "firing or pending"),
        ("{replica: r0", "{alertname: x, replica: r0", 10, f"{EXPECTED}.exp_labels", "not that of the check"),
        ("{replica: r0, ", "{", 10, f"{EXPECTED}.exp_labels", "a kind of entity"),
        ("exp_labels", "labels", 10, f"{EXPECTED}.labels", 'did you mean "exp_labels"'),
        ("- input_series:", "- interval: 0s\n    input_series:", 3, "interval", "a duration above 0"),
        ("- input_series:", "- start: noon\n    input_series:", 3, "start", "a time such as"),
    ],
)
def test_mistakes_of_a_test_have_line_key_and_expectation(problems, old, new, line, key, message):
    assert old in GOOD
    found = problems(GOOD.replace(old, new, 1))
    assert any((at, where) == (line, f"tests[0].{key}") and message in text for at, where, text in found), found


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "message"),
    [
        ("tests:", "test:", 2, "test", 'did you mean "tests"'),
        ("[rules.yaml]", "[nowhere.yaml]", 1, "rule_files[0]", "is not a file"),
        ("[rules.yaml]", "rules.yaml", 1, "rule_files", "expected a list"),
    ],
)
def test_mistakes_of_the_file_have_line_key_and_expectation(problems, old, new, line, key, message):
    assert old in GOOD
    found = problems(GOOD.replace(old, new, 1))
    assert any((at, where) == (line, key) and message in text for at, where, text in found), found


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ('svc_ttft_seconds{service="chat"}', 'the label observed="1.5"'),
        ('svc_requests_total{service="chat", observed="1"}', "unknown label observed"),
        ('finding{gpu="a"}', "the label fault, detector or both"),
        ('finding{gpu="a", fault="gpu-lots"}', 'did you mean "gpu-lost"'),
        ('finding{gpu="a", detector="seasonl"}', 'did you mean "seasonal"'),
        ('plan{service="chat"}', "the labels measure and service"),
        ('plan{gpu="a", measure="x"}', "the labels measure and service"),
        ('node_ready{node="a", gpu="b"}', "one label that is a kind of entity"),
        ("node_ready{node=a}", "expected a label"),
    ],
)
def test_each_kind_of_series_is_checked(problems, series, message):
    found = problems(GOOD.replace('engine_requests_waiting{replica="r0", namespace="llm"}', series))
    assert any(message in text and line == 4 for line, _, text in found), found


def test_a_mistake_in_a_rule_file_has_the_position_of_that_file(problems, tmp_path):
    ((line, _, message),) = problems(
        GOOD, rules="rules:\n- {name: mine, kind: replica,\n   expr: 'sum(engine_up, \"5m\") > 1'}\n"
    )
    assert line == 3
    assert "sum needs a counter" in message


@pytest.mark.parametrize(
    "text", ["", "- a\n", "tests: 3\n", "tests: [a]\n", "tests: [{input_series: 1, alert_rule_test: 2}]\n"]
)
def test_a_file_of_another_shape_is_refused(problems, text):
    assert problems(text)


KEYS = (
    "tests", "input_series", "series", "values", "alert_rule_test", "eval_time", "exp_alerts", "exp_labels", "interval",
    "start", "services", "slos", "enable", "rule_files", "x",
)  # fmt: skip
ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)),
    max_leaves=12,
)


@pytest.mark.slow
@given(ANY)
def test_any_yaml_is_read_or_refused(tmp_path_factory, value):
    file = tmp_path_factory.mktemp("any") / "test.yaml"
    file.write_text(yaml.safe_dump(value), encoding="utf-8")
    with suppress(ConfigError):
        assert isinstance(fixture_run.run(fixture_file.read(file, Settings())), tuple)


# --- an independent model of one rule -------------------------------------------------------------


def firing(values, wait, clear):
    """Whether an alert on values above 10 fires after each step, with waits in steps; None is a stale value."""
    pending = gone = None
    fires, result = False, []
    for step, value in enumerate(values):
        if value is None:
            gone = None
        elif value > 10:
            gone = None
            pending = step if pending is None else pending
            fires = fires or step - pending >= wait
        else:
            gone = step if gone is None else gone
            if not fires or step - gone >= clear:
                fires, pending, gone = False, None, None
        result.append(fires)
    return result


@given(st.lists(st.sampled_from([5, 20, 20, 20]), min_size=1, max_size=30), st.integers(0, 6), st.integers(0, 6))
def test_alerts_fire_as_a_plain_model_of_waiting_and_clear_time(tmp_path_factory, values, wait, clear):
    folder = tmp_path_factory.mktemp("model")
    rule = {"name": "mine", "kind": "replica", "expr": "engine_requests_waiting > 10", "priority": "P2",
            "wait": f"{15 * wait}s", "clear": f"{15 * clear}s"}  # fmt: skip
    (folder / "rules.yaml").write_text(yaml.safe_dump({"rules": [rule]}), encoding="utf-8")
    expected = firing(values, wait, clear)
    labels = [{"exp_labels": {"replica": "r0"}}]
    checks = [
        {"eval_time": f"{15 * step}s", "alertname": "mine", "exp_alerts": labels if fires else []}
        for step, fires in enumerate(expected)
    ]
    series = {"series": 'engine_requests_waiting{replica="r0"}', "values": " ".join(map(str, values))}
    test = {"input_series": [series], "alert_rule_test": checks}
    (folder / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]}), encoding="utf-8")
    results = fixture_run.run(fixture_file.read(folder / "test.yaml", Settings()))
    assert [result.differences for result in results] == [()] * len(values)
    assert [result.check.after for result in results] == [timedelta(seconds=15 * step) for step in range(len(values))]
