"""Prometheus rules as ours: what is translated, what is left out and why, and files with mistakes."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from alerts.rules.files import load_rules
from collectors.mapping import registry
from detectors.rules.expressions import compile_expression
from outrider.errors import ConfigError
from outrider.model import EntityKind, Priority
from outrider.wire.promql import PromqlError, parse
from service.rules import prometheus_export, prometheus_import
from service.rules.promql.metrics import signals_of_metrics
from service.rules.promql.translation import translate

TTFT = "histogram_quantile(0.99, sum by (le, model_name) (rate(vllm:time_to_first_token_seconds_bucket[5m])))"

ISTIO = 'sum by (destination_service_name) (rate(istio_requests_total{{reporter="destination"{more}}}[5m]))'


@pytest.fixture
def imported(tmp_path):
    def read(text):
        file = tmp_path / "prometheus.yaml"
        file.write_text(text, encoding="utf-8")
        return prometheus_import.read(file)

    return read


@pytest.fixture
def of_rules(imported):
    """Imports rules given as dictionaries, in one group of a PrometheusRule object."""

    def read(*rules):
        return imported(
            yaml.safe_dump(
                {
                    "apiVersion": "monitoring.coreos.com/v1",
                    "kind": "PrometheusRule",
                    "metadata": {"name": "x"},
                    "spec": {"groups": [{"name": "g", "rules": list(rules)}]},
                }
            )
        )

    return read


# --- conditions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("promql", "kind", "expr"),
    [
        ("up == 0", "workload", "last(target_up) == 0"),
        ("vllm:num_requests_waiting > 10", "replica", "last(engine_requests_waiting) > 10"),
        ("vllm:gpu_cache_usage_perc >= 0.9", "replica", "last(engine_kv_cache_usage_ratio) >= 0.9"),
        (
            "avg_over_time(vllm:kv_cache_usage_perc[5m]) > 0.95 and vllm:num_requests_waiting > 0",
            "replica",
            'mean(engine_kv_cache_usage_ratio, "5m") > 0.95 and last(engine_requests_waiting) > 0',
        ),
        (f"{TTFT} > 2", "service", 'quantile(0.99, svc_ttft_seconds, "5m") > 2'),
        (
            f"{TTFT.replace('model_name', 'instance')} > 2",
            "replica",
            'quantile(0.99, engine_ttft_seconds, "5m") > 2',
        ),
        (
            "histogram_quantile(0.5, rate(vllm:e2e_request_latency_seconds_bucket[90s])) > 2",
            "replica",
            'quantile(0.5, engine_e2e_seconds, "90s") > 2',
        ),
        ("DCGM_FI_DEV_GPU_UTIL > 90", "gpu", "last(hw_accel_utilization_ratio) * 100 > 90"),
        ("increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[1h]) > 0", "gpu", 'sum(hw_accel_ecc_uncorrectable_total, "1h") > 0'),
        (
            'kube_node_status_condition{condition="Ready",status="true"} == 0',
            "node",
            "last(node_ready) == 0",
        ),
        (
            "(1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes) * 100 > 90",
            "node",
            "(1 - last(node_memory_available_ratio)) * 100 > 90",
        ),
        (
            'rate(vllm:request_success_total{finished_reason="abort"}[5m]) > 1',
            "replica",
            'mean(engine_aborted_per_second, "5m") > 1',
        ),
        (
            "sum by (model_name) (increase(vllm:prompt_tokens_total[5m])) > 9",
            "service",
            'sum(svc_prompt_tokens_total, "5m") > 9',
        ),
        (
            f'{ISTIO.format(more=",response_code=~%5..%")} / {ISTIO.format(more="")} > 0.01'.replace("%", '"'),
            "service",
            'rate(svc_failed_total, "5m") / rate(svc_requests_total, "5m") > 0.01',
        ),
        (
            '1 - avg by (instance) (rate(node_cpu_seconds_total{mode="idle"}[5m])) > 0.9',
            "node",
            '1 - (1 - mean(node_cpu_utilization_ratio, "5m")) > 0.9',
        ),
        (
            "clamp_min(vllm:num_requests_running, 1) > 2 or up > 3 and up == 1",
            "replica",
            "greatest(last(engine_requests_running), 1) > 2 or last(engine_up) > 3 and last(engine_up) == 1",
        ),
        (
            "(vllm:num_requests_waiting > 1 or up < 1) and up - (3 - 1) < -1",
            "replica",
            "(last(engine_requests_waiting) > 1 or last(engine_up) < 1) and last(engine_up) - (3 - 1) < -1",
        ),
        ("vllm:num_requests_waiting", "replica", "present(engine_requests_waiting)"),
        ("outrider:engine_requests_waiting > 2", "replica", "last(engine_requests_waiting) > 2"),
    ],
)  # fmt: skip
def test_conditions_over_known_metrics_are_translated(promql, kind, expr):
    translated = translate(parse(promql))
    assert (translated.kind.value, translated.expr) == (kind, expr)
    compile_expression("a", translated.expr)


@pytest.mark.parametrize(
    ("promql", "reason"),
    [
        ("node_load1 > 5", "no adapter reads node_load1 as a signal"),
        ("sum(rate(vllm:prompt_tokens_total[5m])) > 1", "is aggregated by nothing"),
        (f"{TTFT.replace(', model_name', '')} > 2", "is aggregated by le, and no kind of entity"),
        ("avg by (model_name) (vllm:num_requests_waiting) > 1", "is aggregated by model_name"),
        (
            'sum by (instance) (rate(node_cpu_seconds_total{mode="idle"}[5m])) > 1',
            "its signal is the avg of its series",
        ),
        ("absent(up)", "absent() has no entity"),
        ("predict_linear(node_load1[1h], 3600) > 1", "the function predict_linear cannot"),
        ("irate(vllm:prompt_tokens_total[5m]) > 1", "the function irate cannot"),
        ("rate(vllm:num_requests_waiting[5m]) > 1", "is a gauge, and is not read as one"),
        ("kube_pod_container_status_restarts_total > 5", "is a counter, and is not read as one"),
        ("vllm:time_to_first_token_seconds > 1", "is a histogram, and is not read as one"),
        ("vllm:num_requests_waiting > 10 and DCGM_FI_DEV_GPU_TEMP > 85", "different kinds of entity"),
        ("vllm:num_requests_waiting > 1 unless vllm:num_requests_running > 0", "unless cannot"),
        ("vllm:num_requests_waiting > bool 1", "bool cannot"),
        ("vllm:num_requests_waiting > on(a) group_left() vllm:num_requests_running", "group_left cannot"),
        ("(vllm:num_requests_waiting > 1) * 2 > 1", "a comparison inside arithmetic"),
        ("vllm:num_requests_waiting % 2 > 1", "the operator % cannot"),
        ("count(up == 0) > 3", "an aggregation over arithmetic or comparisons"),
        ("topk(3, vllm:num_requests_waiting) > 1", "the aggregation topk cannot"),
        ("sum without (x) (vllm:num_requests_waiting) > 1", "without(...) cannot"),
        ("max by (instance) (sum by (instance) (vllm:num_requests_waiting)) > 1", "an aggregation of an aggregation"),
        ('vllm:num_requests_waiting{model_name="x"} > 1', 'the matcher model_name="x" cannot be expressed'),
        ('vllm:num_requests_waiting{namespace!="x"} > 1', 'the matcher namespace!="x" cannot be expressed'),
        ('up{job="vllm"} == 0', 'the matcher job="vllm" cannot be expressed'),
        ('kube_node_status_condition{condition="Ready"} == 0', "is a signal only with condition="),
        ("vllm:num_requests_waiting[5m] > 1", "has a range without a function"),
        ("histogram_quantile(2, rate(vllm:time_to_first_token_seconds_bucket[5m])) > 1", "between 0 and 1"),
        ("histogram_quantile(0.9, vllm:time_to_first_token_seconds_bucket) > 1", "needs a rate of buckets"),
        ("avg_over_time(vllm:num_requests_waiting[500ms]) > 1", "whole seconds"),
        ("1 > 2", "it reads no metric"),
        ('"a" > 1', "a text is not a number"),
        (
            'vllm:num_requests_waiting{namespace="a"} > 1 and vllm:num_requests_running{namespace="b"} > 1',
            "different namespaces",
        ),
    ],
)
def test_what_has_no_translation_is_named_with_its_reason(promql, reason):
    with pytest.raises(PromqlError) as caught:
        translate(parse(promql))
    assert reason in str(caught.value)


def test_namespaces_are_selected_and_other_differences_are_noted():
    waiting, running = '{namespace=~"a|b", job="vllm"}', '{namespace=~"b|a"}'
    text = f"vllm:num_requests_waiting{waiting} > on(instance) vllm:num_requests_running{running}"
    translated = translate(parse(text))
    assert translated.where == {"namespace": ("a", "b")}
    assert translated.notes == (
        'the matcher job="vllm" is dropped: the signal names its source',
        "on(instance) is dropped: values of one entity are compared",
    )


FORMS = ("{}", "rate({}[5m])", "increase({}[1m])", "max_over_time({}[5m])", "sum by (instance) ({})",
         "histogram_quantile(0.9, rate({}_bucket[5m]))")  # fmt: skip


@given(st.sampled_from(sorted(signals_of_metrics())), st.sampled_from(FORMS))
def test_whatever_is_translated_compiles(metric, form):
    try:
        translated = translate(parse(f"{form.format(metric)} > 1"))
    except PromqlError:
        return
    compile_expression("a", translated.expr)


API = "apiVersion: monitoring.coreos.com/v1\n  kind: PrometheusRule"

# --- rules ----------------------------------------------------------------------------------------


def test_times_severity_labels_and_texts_are_kept(of_rules, tmp_path):
    result = of_rules(
        {
            "alert": "HighTTFT",
            "expr": f"{TTFT} > 2",
            "for": "1m30s",
            "keep_firing_for": "1h30m",
            "labels": {"severity": "critical", "team": "serving", "pod": "{{ $labels.pod }}"},
            "annotations": {"summary": "slow {{ $value }}", "description": "Scale  out.", "runbook_url": "https://w/x"},
        }
    )
    assert result.left_out == []
    (rule,) = result.rules
    assert rule == {
        "name": "high-ttft",
        "kind": "service",
        "expr": 'quantile(0.99, svc_ttft_seconds, "5m") > 2',
        "priority": "P1",
        "wait": "90s",
        "clear": "90m",
        "default_action_text": "Scale out.",
        "runbook": "https://w/x",
        "labels": {"alertname": "HighTTFT", "team": "serving"},
    }
    assert {note.text.partition(" ")[0] for note in result.notes} == {"labels", "of", "texts"}
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"rules": result.rules}), encoding="utf-8")
    (loaded,) = [rule for rule in load_rules([file]) if rule.name == "high-ttft"]
    assert (loaded.kind, loaded.priority) == (EntityKind.SERVICE, Priority.P1)


@pytest.mark.parametrize(
    ("labels", "priority"),
    [
        ({}, "P2"),
        ({"severity": "warning"}, "P2"),
        ({"severity": "Page"}, "P1"),
        ({"severity": "info"}, "P3"),
        ({"severity": "emergency"}, "P0"),
        ({"severity": "info", "priority": "P0"}, "P0"),
        ({"severity": "odd"}, "P2"),
    ],
)
def test_severities_become_priorities(of_rules, labels, priority):
    assert of_rules({"alert": "A", "expr": "up == 0", "labels": labels}).rules[0]["priority"] == priority


def test_rules_of_one_name_get_names_of_their_own(of_rules):
    rules = [
        {"alert": "Down", "expr": "up == 0", "labels": {"severity": "warning"}},
        {"alert": "Down", "expr": "up == 0", "labels": {"severity": "critical"}},
        {"alert": "Down", "expr": "up == 0", "labels": {"severity": "critical"}},
        {"alert": "NodeLost", "expr": "up == 0"},
        {"alert": "5xx", "expr": "up == 0"},
    ]
    names = [rule["name"] for rule in of_rules(*rules).rules]
    assert names == ["down", "down-critical", "down-2", "node-lost-2", "rule-5-xx"]


def test_every_rule_is_imported_or_named_with_group_line_and_reason(imported):
    result = imported(
        "groups:\n"
        "- name: one\n"
        "  rules:\n"
        "  - {alert: A, expr: up == 0}\n"
        "  - {alert: B, expr: 'node_load1 > 1'}\n"
        "- name: two\n"
        "  rules:\n"
        "  - {alert: C, expr: 'sum('}\n"
        "  - {alert: D, expr: up == 0, for: soon}\n"
    )
    assert [rule["labels"]["alertname"] for rule in result.rules] == ["A"]
    assert [(rule.name, rule.group, rule.line) for rule in result.left_out] == [
        ("B", "one", 5),
        ("C", "two", 8),
        ("D", "two", 9),
    ]
    assert "is not a duration" in result.left_out[2].reason


def test_recording_rules_of_the_file_are_used(of_rules):
    result = of_rules(
        {"record": "ttft:p99", "expr": TTFT},
        {"record": "twice", "expr": "2 * ttft:p99"},
        {"record": "loop", "expr": "loop + 1"},
        {"alert": "A", "expr": "twice > 2"},
        {"alert": "B", "expr": "loop > 2"},
        {"alert": "C", "expr": 'ttft:p99{job="a"} > 2'},
    )
    assert [rule["expr"] for rule in result.rules] == ['2 * quantile(0.99, svc_ttft_seconds, "5m") > 2']
    reasons = {rule.name: rule.reason for rule in result.left_out}
    assert reasons["B"] == "loop is recorded from itself"
    assert "recorded series with matchers" in reasons["C"]
    assert [note.rule for note in result.notes] == ["ttft:p99", "twice", "loop", "a"]
    assert result.notes[-1].text.startswith("of fewer than 100 observations the quantile 0.99 is undefined")


def test_rules_that_outrider_exported_are_named_as_its_own(of_rules):
    own = prometheus_export.export(load_rules(), "en").document["spec"]["groups"][0]["rules"]
    result = of_rules(*own)
    assert result.rules == []
    reasons = {rule.reason for rule in result.left_out}
    assert "it is Outrider's own rule availability-low, exported over its stored series" in reasons
    assert len(reasons) == len(own)


def test_recording_rules_that_grow_without_end_are_refused(of_rules):
    rules = [{"record": f"r{number}", "expr": f"r{number + 1} + r{number + 1}"} for number in range(20)]
    result = of_rules(*rules, {"record": "r20", "expr": "up"}, {"alert": "A", "expr": "r0 > 1"})
    assert result.left_out[0].reason == "its recording rules are too large"


@pytest.mark.parametrize(
    "text",
    [
        f"kind: List\nitems:\n- {API}\n  spec: {{groups: [{{name: g, rules: [{{alert: A, expr: up == 0}}]}}]}}\n",
        "groups: [{name: g, rules: [{alert: A, expr: up == 0}]}]\n",
        "---\napiVersion: v1\nkind: ConfigMap\n---\ngroups: [{name: g, rules: [{alert: A, expr: up == 0}]}]\n",
    ],
    ids=["list", "plain", "documents"],
)
def test_lists_plain_files_and_several_documents_are_read(imported, text):
    assert [rule["name"] for rule in imported(text).rules] == ["a"]


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("kind: Prometheus\n", 1, "kind"),
        ("groups: 3\n", 1, "groups"),
        ("groups:\n- {name: g, rules: [{alert: A}]}\n", 2, "groups[0].rules[0]"),
        ("groups:\n- {name: g, rules: [{expr: up}]}\n", 2, "groups[0].rules[0]"),
        ("groups:\n- name: g\n  rules: [x]\n", 3, "groups[0].rules[0]"),
    ],
)
def test_a_file_that_is_none_of_prometheus_is_refused_with_its_line(imported, text, line, key):
    with pytest.raises(ConfigError) as caught:
        imported(text)
    assert (caught.value.problems[0].line, caught.value.problems[0].key) == (line, key)


def test_a_file_without_rules_is_refused(imported):
    with pytest.raises(ConfigError, match="contains no rule"):
        imported("groups: []\n")


def test_an_exported_rule_over_one_adapter_is_not_lost_on_its_way_back(imported):
    rules = [rule for rule in load_rules() if rule.name == "kv-cache-full"]
    exported = prometheus_export.export(rules, "en", registry.adapter("vllm"))
    result = imported(yaml.safe_dump(exported.document))
    assert len(result.rules) + len(result.left_out) == 1
