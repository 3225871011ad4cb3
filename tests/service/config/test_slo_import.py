"""Import of SLOs of other tools: mapped ones, and refused ones with their line."""

from __future__ import annotations

import pytest
import yaml

from outrider.errors import ConfigError
from service.config import settings as settings_file
from service.config import slo_import
from tests.service.cli.test_cli import answer, run

SLOTH = """\
version: "prometheus/v1"
service: chat
slos:
  - name: answers
    objective: 99.9
    sli:
      events:
        error_query: sum(rate(istio_requests_total{response_code=~"5.."}[{{.window}}]))
        total_query: sum(rate(istio_requests_total[{{.window}}]))
  - name: first-token
    objective: 99
    sli:
      events:
        error_query: |
          sum(rate(vllm:time_to_first_token_seconds_count[{{.window}}]))
          - sum(rate(vllm:time_to_first_token_seconds_bucket{le="1.0"}[{{.window}}]))
        total_query: sum(rate(vllm:time_to_first_token_seconds_count[{{.window}}]))
"""
OPENSLO = """\
apiVersion: openslo/v1
kind: Service
metadata: {name: chat}
---
apiVersion: openslo/v1
kind: SLO
metadata:
  name: chat-latency
spec:
  service: chat
  budgetingMethod: Occurrences
  indicator:
    metadata: {name: fast}
    spec:
      ratioMetric:
        counter: true
        good:
          metricSource:
            type: Prometheus
            spec: {query: 'sum(rate(vllm:e2e_request_latency_seconds_bucket{le="10.0"}[5m]))'}
        total:
          metricSource:
            type: Prometheus
            spec: {query: 'sum(rate(vllm:e2e_request_latency_seconds_count[5m]))'}
  timeWindow:
    - {duration: 28d, isRolling: true}
  objectives:
    - target: 0.995
"""

PYRRA = """\
apiVersion: pyrra.dev/v1alpha1
kind: ServiceLevelObjective
metadata:
  name: chat-errors
  namespace: monitoring
  labels: {prometheus: k8s}
spec:
  target: '99.9'
  window: 4w
  indicator:
    ratio:
      errors: {metric: 'istio_requests_total{destination_service_name="chat",namespace="llm",response_code=~"5.."}'}
      total: {metric: 'istio_requests_total{destination_service_name="chat",namespace="llm"}'}
---
apiVersion: pyrra.dev/v1alpha1
kind: ServiceLevelObjective
metadata: {name: first-token}
spec:
  target: "99"
  window: 28d
  indicator:
    latency:
      success: {metric: 'vllm:time_to_first_token_seconds_bucket{job="vllm",le="1"}'}
      total: {metric: 'vllm:time_to_first_token_seconds_count{job="vllm"}'}
      grouping: [model_name]
---
apiVersion: v1
kind: List
items:
- apiVersion: pyrra.dev/v1alpha1
  kind: ServiceLevelObjective
  metadata: {name: whole-request}
  spec:
    target: "95"
    window: 2w
    indicator:
      latencyNative: {total: {metric: 'vllm:e2e_request_latency_seconds'}, latency: 10s}
    alerting: {name: Slow, burnrates: true, absent: false}
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "slo.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_sloth_is_read(file):
    assert slo_import.read(file(SLOTH)) == [
        {"name": "answers", "service": "chat", "sli": "success", "objective": 0.999},
        {"name": "first-token", "service": "chat", "sli": "ttft", "limit": "1s", "objective": 0.99},
    ]


def test_openslo_is_read(file):
    assert slo_import.read(file(OPENSLO)) == [
        {
            "name": "chat-latency", "service": "chat", "sli": "latency", "limit": "10s", "objective": 0.995,
            "window": "28d",
        }
    ]  # fmt: skip


def test_pyrra_is_read(file):
    assert slo_import.read(file(PYRRA)) == [
        {
            "name": "chat-errors", "service": "chat", "sli": "success", "objective": 0.999, "namespace": "llm",
            "window": "4w",
        },
        {"name": "first-token", "sli": "ttft", "limit": "1s", "objective": 0.99, "window": "28d"},
        {"name": "whole-request", "sli": "latency", "limit": "10s", "objective": 0.95, "window": "2w"},
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["ServiceLevelObjectiveList", "List"])
def test_lists_of_pyrra_are_read(file, kind):
    item = yaml.safe_load(PYRRA.partition("---")[0])
    api = {"apiVersion": "pyrra.dev/v1alpha1" if kind != "List" else "v1", "kind": kind}
    (slo,) = slo_import.read(file(yaml.safe_dump({**api, "items": [item]})))
    assert slo["name"] == "chat-errors"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("target: '99.9'", "target: a lot", "spec.target"),
        ("target: '99.9'", "target: '0'", "spec.target"),
        ("name: chat-errors", "name: Chat_Errors", "metadata.name"),
        ("kind: ServiceLevelObjective", "kind: Objective", "kind"),
        ("ratio:", "bool_gauge:", "spec.indicator"),
        ('namespace="llm"}', 'namespace="llm",handler="/v1"}', "spec.indicator.ratio.total.metric"),
        ('namespace="llm"}', 'namespace!="llm"}', "spec.indicator.ratio.total.metric"),
        ('namespace="llm"}', 'namespace="llm"', "spec.indicator.ratio.total.metric"),
        ("total: {metric: 'istio", "total: {metrics: 'istio", "spec.indicator.ratio.total.metric"),
        ("istio_requests_total", "my_requests_total", "spec.indicator.ratio"),
        ("    ratio:\n", "    ratio:\n      grouping: [handler]\n", "spec.indicator.ratio.grouping[0]"),
        ("  window: 4w\n", "  window: 4w\n  alerting: {disabled: true}\n", "spec.alerting.disabled"),
        ("  window: 4w\n", "  window: 4w\n  alerting: {burnrates: false}\n", "spec.alerting.burnrates"),
    ],
)
def test_what_an_objective_of_pyrra_cannot_have_here_is_named(file, old, new, key):
    text = PYRRA.partition("---")[0]
    assert old in text
    with pytest.raises(ConfigError) as refused:
        slo_import.read(file(text.replace(old, new)))
    assert key in [problem.key for problem in refused.value.problems], refused.value.problems


@pytest.mark.parametrize(("old", "new"), [("10s", "11s"), ("10s", "long"), ("vllm:e2e_request", "my_request")])
def test_a_native_latency_needs_a_bound_of_a_known_histogram(file, old, new):
    text = PYRRA.rpartition("---\n")[2]
    with pytest.raises(ConfigError) as refused:
        slo_import.read(file(text.replace(old, new)))
    assert "latencyNative" in refused.value.problems[0].key


def test_a_good_count_without_failures_is_a_success(file):
    text = OPENSLO.replace(
        'vllm:e2e_request_latency_seconds_bucket{le="10.0"}', 'istio_requests_total{response_code!~"5.."}'
    )
    text = text.replace("vllm:e2e_request_latency_seconds_count", "istio_requests_total")
    assert slo_import.read(file(text))[0]["sli"] == "success"


@pytest.mark.parametrize("text", [SLOTH, OPENSLO, PYRRA])
def test_an_import_is_a_valid_configuration(file, tmp_path, text):
    shown = run("slo", "import", str(file(text)), "-o", "table", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    ours = tmp_path / "outrider.yaml"
    ours.write_text(shown.stdout, encoding="utf-8")
    assert [one.name for one in settings_file.load(ours).slos] == [
        one["name"] for one in yaml.safe_load(shown.stdout)["slos"]
    ]
    assert answer("slo", "import", str(file(text)), "-o", "json", cwd=tmp_path) == yaml.safe_load(shown.stdout)["slos"]


@pytest.mark.parametrize(
    ("text", "old", "new", "line", "key"),
    [
        (SLOTH, 'le="1.0"', 'le="1.3"', 12, "slos[1].sli.events"),
        (SLOTH, "istio_requests_total", "my_requests_total", 6, "slos[0].sli.events"),
        (SLOTH, '=~"5.."', '=~"(5..|429)"', 6, "slos[0].sli.events"),
        (SLOTH, "99.9", "199", 5, "slos[0].objective"),
        (SLOTH, "name: answers", "name: My Answers", 4, "slos[0].name"),
        (SLOTH, "prometheus/v1", "prometheus/v9", 1, "version"),
        (OPENSLO, "Occurrences", "Timeslices", 11, "spec.budgetingMethod"),
        (OPENSLO, "- target: 0.995", "[]", 26, "spec.objectives"),
        (OPENSLO, "isRolling: true", "isRolling: false", 25, "spec.timeWindow[0].isRolling"),
        (OPENSLO, "target: 0.995", "target: 99.5", 27, "spec.objectives[0].target"),
    ],
)
def test_an_objective_without_a_matching_signal_is_refused(file, tmp_path, text, old, new, line, key):
    assert old in text
    path = file(text.replace(old, new))
    with pytest.raises(ConfigError) as refused:
        slo_import.read(path)
    (problem,) = refused.value.problems
    assert (problem.key, problem.file) == (key, str(path))
    assert abs(problem.line - line) <= 1, problem
    assert "expected" in problem.message
    assert run("slo", "import", str(path), cwd=tmp_path).returncode == 2


def test_a_file_without_slos_is_refused(file):
    with pytest.raises(ConfigError, match="contains no SLO"):
        slo_import.read(file("apiVersion: openslo/v1\nkind: Service\nmetadata: {name: a}\n"))
