"""``outrider rules``: rules that are on and off, tests with exit codes, import and export."""

import contextlib
import io
import json
import sys
from unittest import mock

import pytest

from service.cli import main

TEST = """\
tests:
  - name: broken node
    input_series:
      - {series: 'node_ready{node="n1"}', values: '0x20'}
    alert_rule_test:
      - {eval_time: 0s, alertname: node-not-ready}
      - eval_time: 1m
        alertname: node-not-ready
        exp_alerts: [{exp_labels: {node: n1, priority: P3}}]
"""


def run(*arguments, cwd, code=0):
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        mock.patch.object(sys, "argv", ["outrider", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        main()
    assert left.value.code == code, err.getvalue()
    return out.getvalue(), err.getvalue()


def written(tmp_path, text, name="test.yaml"):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_passed_tests_are_counted(tmp_path):
    out, _ = run("rules", "test", written(tmp_path, TEST), cwd=tmp_path)
    result = json.loads(out)
    assert (result["passed"], result["failed"]) == (2, 0)
    assert [case["test"] for case in result["cases"]] == ["broken node"] * 2
    assert result["cases"][1]["found"] == [
        {"alertname": "node-not-ready", "cluster": "default", "node": "n1", "priority": "P3", "routes": "report"}
    ]


def test_a_failed_test_exits_with_1_and_names_file_line_and_difference(tmp_path):
    file = written(tmp_path, TEST.replace("P3", "P1"))
    out, _ = run("rules", "test", file, cwd=tmp_path, code=1)
    case = json.loads(out)["cases"][1]
    assert (case["passed"], case["line"]) == (False, 7)
    assert case["differences"] == ["node-not-ready on node/n1: priority is P3, expected P1"]
    text, _ = run("rules", "test", file, "-o", "table", cwd=tmp_path, code=1)
    assert f"{file}:7: broken node, 1m:" in text
    assert "1 passed, 1 failed" in text


def test_several_files_are_one_result(tmp_path):
    files = [written(tmp_path, TEST, name) for name in ("a.yaml", "b.yaml")]
    out, _ = run("rules", "test", *files, cwd=tmp_path)
    assert {case["file"] for case in json.loads(out)["cases"]} == set(files)


def test_every_mistake_of_a_test_file_is_printed_with_exit_code_2(tmp_path):
    file = written(tmp_path, TEST.replace("node_ready", "node_redy").replace("eval_time: 1m", "eval_time: soon"))
    out, err = run("rules", "test", file, cwd=tmp_path, code=2)
    assert f"{file}:4: tests[0].input_series[0].series: there is no signal node_redy" in err
    assert f"{file}:7: tests[0].alert_rule_test[1].eval_time:" in err
    assert set(json.loads(out)["error"]) == {"message", "hint"}


def test_rules_that_are_off_are_listed_with_their_pack(tmp_path):
    written(tmp_path, "rules: {enable: [gpu-lost-p0]}\n", "outrider.yaml")
    rows = {row["name"]: row for row in json.loads(run("rules", "list", cwd=tmp_path)[0])}
    assert (rows["gpu-lost-p0"]["enabled"], rows["gpu-lost"]["enabled"]) == (True, False)
    assert (rows["aborts-high"]["enabled"], rows["aborts-high"]["pack"]) == (False, "quality")
    assert "GPU 掉卡" in [row["title"] for row in json.loads(run("rules", "list", "--lang", "zh", cwd=tmp_path)[0])]
    assert "thresholds" in run("rules", "list", "-o", "table", cwd=tmp_path)[0]


PROMETHEUS = """\
groups:
- name: g
  rules:
  - {alert: Down, expr: up == 0, for: 1m}
  - {alert: Load, expr: node_load1 > 5}
"""


def test_imported_rules_are_reported_and_written(tmp_path):
    file = written(tmp_path, PROMETHEUS)
    out, _ = run("rules", "import", file, "--out", "own.yaml", cwd=tmp_path, code=1)
    result = json.loads(out)
    assert [rule["name"] for rule in result["rules"]] == ["down"]
    assert result["left_out"] == [
        {"name": "Load", "group": "g", "line": 5, "reason": "no adapter reads node_load1 as a signal"}
    ]
    text = (tmp_path / "own.yaml").read_text(encoding="utf-8")
    assert "# left out: Load (line 5): no adapter reads node_load1 as a signal" in text
    written(tmp_path, "rules: {files: [own.yaml]}\n", "outrider.yaml")
    rows = {row["name"]: row for row in json.loads(run("rules", "list", cwd=tmp_path)[0])}
    assert rows["down"]["expr"] == "last(target_up) == 0"


def test_an_import_of_every_rule_exits_with_0(tmp_path):
    file = written(tmp_path, PROMETHEUS.rpartition("  - {alert: Load")[0])
    text, _ = run("rules", "import", file, "-o", "table", cwd=tmp_path)
    assert "name: down" in text
    assert "1 imported, 0 left out" in text


def test_an_export_is_an_object_or_a_plain_rule_file(tmp_path):
    written(tmp_path, "rules: {enable: [aborts-high]}\n", "outrider.yaml")
    out, err = run("rules", "export", cwd=tmp_path)
    document = json.loads(out)
    assert document["kind"] == "PrometheusRule"
    names = [rule["alert"] for rule in document["spec"]["groups"][0]["rules"]]
    assert {"AbortsHigh", "AvailabilityLow"} <= set(names)
    assert "left out: gpu-lost: it matches findings of detectors" in err
    plain = json.loads(run("rules", "export", "--plain", "--adapter", "vllm", cwd=tmp_path)[0])
    assert [rule["alert"] for rule in plain["groups"][0]["rules"]] == ["KvCacheFull", "ReplicaSlow"]


def test_an_export_over_an_unknown_adapter_is_refused(tmp_path):
    _, err = run("rules", "export", "--adapter", "vlm", cwd=tmp_path, code=2)
    assert "unknown adapter 'vlm'" in err
