"""Exported rules: loaded by the real Prometheus, and alerts equal to ours on the same values."""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import yaml

from alerts.rules.files import load_entries
from collectors.mapping import registry
from detectors.rules.threshold import compile_rules
from outrider.model import EntityKind, Priority
from outrider.vocabulary.rules import AbsentPolicy, Rule
from service.config.settings import Settings
from service.rules import fixture_file, fixture_run, prometheus_export
from store.remote.names import name_of
from tests.support.metric_servers import missing, prometheus
from tests.support.waiting import until

FIXTURES = sorted((Path(__file__).parents[2] / "alerts" / "rules" / "fixtures").glob("*.yaml"))
EVERY = tuple(entry.rule for entry in load_entries())
OF_VALUES = tuple(
    rule for rule in EVERY if rule.expr is not None and (not rule.where or rule.kind is EntityKind.TENANT)
)


def promtool(*arguments, cwd):
    if shutil.which("promtool") is None:
        pytest.skip("missing: promtool (Debian package prometheus)")
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, cwd=cwd)


def groups(exported):
    return exported.document["spec"]


def written(tmp_path, document, name):
    (tmp_path / name).write_text(yaml.safe_dump(document), encoding="utf-8")
    return name


# --- what is written ------------------------------------------------------------------------------


def test_every_rule_over_values_is_exported_and_every_other_one_is_named():
    exported = prometheus_export.export(EVERY, "en")
    names = [rule["labels"]["outrider_rule"] for rule in groups(exported)["groups"][0]["rules"]]
    assert names == [rule.name for rule in OF_VALUES]
    assert set(exported.left_out) == {rule.name for rule in EVERY} - set(names)
    assert exported.left_out["gpu-lost"] == "it matches findings of detectors, which are not metrics"
    assert exported.left_out["vip-ttft-high"] == "stored series do not have the fact request_class"
    assert exported.left_out["weekly-growth"] == "it matches figures of the capacity plan, which are not metrics"


def test_a_rule_keeps_its_times_priority_labels_and_texts():
    rule = Rule("hot-node", EntityKind.NODE, "node_cpu_utilization_ratio > 0.9", priority=Priority.P1,
                wait=timedelta(seconds=90), clear=timedelta(hours=1), labels={"team": "a"}, runbook="https://w/hot",
                where={"namespace": ("a.b", "c"), "cluster": ("east",)})  # fmt: skip
    document = prometheus_export.export([rule], "en").document
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    (entry,) = document["spec"]["groups"][0]["rules"]
    assert entry == {
        "alert": "HotNode",
        "expr": 'last_over_time(outrider_node_cpu_utilization_ratio{kind="node", namespace=~"a\\\\.b|c", '
        'cluster=~"east"}[1m]) > 0.9',
        "for": "90s",
        "keep_firing_for": "1h",
        "labels": {"team": "a", "severity": "critical", "priority": "P1", "outrider_rule": "hot-node"},
        "annotations": {
            "summary": "hot-node: {{ $labels.kind }} {{ $labels.namespace }}/{{ $labels.name }}",
            "runbook": "https://w/hot",
        },
    }


@pytest.mark.parametrize(
    ("condition", "written_"),
    [
        ("{} > 2", "{} > 2.5"),
        ("{} >= 2.5", "{} > 2.5"),
        ("2 < {}", "{} > 2.5"),
        ("{} > -1", "{} > 0"),
        ("{} < 2.5", "{} <= 1"),
        ("{} <= 2.5", "{} <= 2.5"),
        ("{} <= greatest(1, 2) * 2 - 1", "{} <= 2.5"),
        ("{} == 2", "{} == 2"),
    ],
)
def test_the_limit_of_a_quantile_becomes_a_bound_of_its_buckets(condition, written_):
    """A Prometheus interpolates inside a bucket; at its bounds it agrees with what the bucket proves."""
    text = condition.format('quantile(0.9, engine_ttft_seconds, "2m")')
    (entry,) = groups(prometheus_export.export([Rule("a", EntityKind.REPLICA, text)], "en"))["groups"][0]["rules"]
    bucket = "outrider_engine_ttft_seconds_bucket"
    quantile = (
        f'(histogram_quantile(0.9, sum_over_time({bucket}{{kind="replica"}}[2m])) '
        f'and sum without (le) (sum_over_time({bucket}{{kind="replica", le="+Inf"}}[2m])) >= 10)'
    )
    assert entry["expr"] == written_.format(quantile)


def test_the_facts_of_a_tenant_are_in_its_name():
    where = {"tenant": ("a.b", "!none"), "service": ("chat",)}
    rule = Rule("a", EntityKind.TENANT, "last(tenant_requests_total) > 1", where=where)
    (entry,) = groups(prometheus_export.export([rule], "en"))["groups"][0]["rules"]
    assert 'name=~".*/(a\\\\.b)", name!~".*/(none)", name=~"(chat)/[^/]*"' in entry["expr"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"expr": "engine_up < 1", "where": {"request_class": ("vip",)}}, "do not have the fact request_class"),
        ({"expr": "1 < 2"}, "compares two numbers"),
        ({"expr": 'quantile(0.9, engine_ttft_seconds, "5m") > 2560'}, "never exceeds 2560, the last bound"),
        (
            {"expr": 'quantile(0.9, engine_ttft_seconds, "5m") < 0.001'},
            "no bucket of engine_ttft_seconds is below 0.001",
        ),
        (
            {"expr": 'quantile(0.9, engine_ttft_seconds, "5m") > last(engine_requests_waiting)'},
            "compares a quantile with a value that is not a number",
        ),
        ({"faults": ("engine-dead",)}, "findings of detectors"),
    ],
)
def test_what_promql_cannot_express_is_left_out_with_its_reason(more, reason):
    exported = prometheus_export.export([Rule("a", EntityKind.REPLICA, **more)], "en")
    assert reason in exported.left_out["a"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"expr": "hw_accel_utilization_ratio > 1"}, "the adapter vllm does not read hw_accel_utilization_ratio"),
        ({"expr": 'quantile(0.42, engine_ttft_seconds, "5m") > 1'}, "the quantile 0.42 is not one of 0.5, 0.9"),
        ({"expr": "not engine_up < 1"}, "do not list the entities"),
        ({"expr": "engine_requests_waiting > 1", "where": {"name": ("x",)}}, "where names entities"),
        ({"expr": "engine_requests_waiting > 1", "absent": AbsentPolicy.FIRE}, "do not list the entities without"),
    ],
)
def test_what_the_metrics_of_an_adapter_cannot_express_is_left_out_too(more, reason):
    rule = Rule("a", EntityKind.REPLICA, **more)
    assert reason in prometheus_export.export([rule], "en", registry.adapter("vllm")).left_out["a"]


# --- the real Prometheus --------------------------------------------------------------------------

OVER_ALL = """\
engine_requests_waiting + 1 > greatest(engine_requests_running, 2 * 3) or -engine_requests_waiting < -5
mean(engine_requests_waiting, "5m") / max(engine_requests_waiting, "90s") != min(engine_requests_waiting, "1h")
rate(engine_generation_tokens_total, "1m") == 0 and not present(engine_ttft_seconds)
greatest(engine_requests_waiting, engine_requests_running) >= 3
quantile(0.9, engine_ttft_seconds, "2m") <= greatest(1, 2.5)
2 * quantile(0.9, engine_ttft_seconds, "2m", 3) > engine_requests_waiting
"""


def test_prometheus_loads_all_that_is_exported(tmp_path):
    more = tuple(
        Rule(f"more-{number}", EntityKind.REPLICA, text, absent=AbsentPolicy.FIRE)
        for number, text in enumerate(OVER_ALL.splitlines())
    )
    compile_rules(more)
    exported = prometheus_export.export((*EVERY, *more), "zh")
    assert not {rule.name for rule in more} & set(exported.left_out)
    done = promtool("check", "rules", written(tmp_path, groups(exported), "rules.yaml"), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(OF_VALUES) + len(more)} rules found" in done.stdout


@pytest.mark.live
def test_a_running_prometheus_evaluates_every_exported_rule(tmp_path):
    if why := missing(["prometheus"]):
        pytest.skip(why)
    exported = groups(prometheus_export.export(EVERY, "en"))
    exported["groups"][0]["interval"] = "1s"
    written(tmp_path, exported, "rules.yaml")
    with prometheus(tmp_path, rules=["rules.yaml"]) as server:

        def rules():
            (group,) = json.loads(server.get("/api/v1/rules"))["data"]["groups"]
            return group["rules"]

        until(lambda: all(rule["health"] != "unknown" for rule in rules()), "every rule was evaluated")
        assert [(rule["name"], rule["lastError"]) for rule in rules() if rule["health"] != "ok"] == []
        assert len(rules()) == len(OF_VALUES)


def test_prometheus_loads_the_rules_over_the_metrics_of_every_adapter(tmp_path):
    files, count = [], 0
    for name in registry.ADAPTERS:
        exported = prometheus_export.export(EVERY, "en", registry.adapter(name))
        count += len(groups(exported)["groups"][0]["rules"])
        files.append(written(tmp_path, groups(exported), f"{name}.yaml"))
    assert count >= 10
    done = promtool("check", "rules", *files, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def stored(test):
    """The series of a test as Outrider writes them to a Prometheus, with one value for each step."""
    for grid in fixture_run.grids([item for item in test.series if item.name not in ("finding", "plan")]):
        for row, entity in enumerate(grid.entities):
            total = {}
            for column, key in enumerate(grid.keys):
                values = grid.values[row, :, column]
                if key.bucket is not None and key.bucket >= 0:  # cumulative over the bounds, as in Prometheus
                    values = total[key.name] = values + total.get(key.name, 0.0)
                yield entity, key, values


def labels_of(entity):
    namespace = {"namespace": entity.namespace} if entity.namespace else {}
    return {"cluster": entity.cluster, "kind": entity.kind.value, **namespace, "name": entity.name, "outrider": "o"}


def as_promtool(test, rules):
    """A test of ours in the form of promtool's, over stored series."""
    series = []
    for entity, key, values in stored(test):
        name = name_of(key)
        labels = {**labels_of(entity), **dict(name.labels)}
        inner = ",".join(f'{label}="{text}"' for label, text in labels.items())
        words = " ".join("_" if np.isnan(value) else f"{value:.12g}" for value in values)
        series.append({"series": f"{name.metric}{{{inner}}}", "values": words})
    checks = []
    for check in test.checks:
        rule = rules[check.alertname]
        expected = [{"exp_labels": {**rule["labels"], **labels_of(item.entity)}} for item in check.expected]
        seconds = f"{check.after.total_seconds():.0f}s"
        checks.append({"eval_time": seconds, "alertname": rule["alert"], "exp_alerts": expected})
    interval = f"{test.interval.total_seconds():.0f}s"
    return {"name": test.name, "interval": interval, "input_series": series, "alert_rule_test": checks}, interval


@pytest.mark.parametrize("file", FIXTURES, ids=lambda file: file.stem)
def test_prometheus_alerts_like_outrider_on_the_same_values(file, tmp_path):
    exported = groups(prometheus_export.export(EVERY, "en"))
    by_name = {rule["labels"]["outrider_rule"]: rule for rule in exported["groups"][0]["rules"]}
    for rule in by_name.values():
        rule.pop("annotations")
    tests = [
        test
        for test in fixture_file.read(file, Settings()).tests
        if all(check.alertname in by_name for check in test.checks)
    ]
    written(tmp_path, exported, "rules.yaml")
    for number, test in enumerate(tests):
        document, interval = as_promtool(test, by_name)
        whole = {"rule_files": ["rules.yaml"], "evaluation_interval": interval, "tests": [document]}
        (tmp_path / f"{number}.yaml").write_text(json.dumps(whole), encoding="utf-8")
        done = promtool("test", "rules", f"{number}.yaml", cwd=tmp_path)
        assert done.returncode == 0, f"{test.name}: {done.stdout} {done.stderr}"
