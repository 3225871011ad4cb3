"""``outrider rootcause backtest`` on a folder of four services with three incidents, and on broken copies of it."""

import json
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from detectors.rca.call_excess import Symptom
from outrider.errors import UsageError
from service.cli import main
from service.evaluation import petshop, rootcause
from service.evaluation.rootcause import Answer

FOLDER = Path(__file__).parent.parent / "labeled_issues"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(FOLDER, tmp_path / "low"))


def call(monkeypatch, capsys, *arguments):
    """(exit code, standard output, standard error) of ``outrider rootcause backtest ARGUMENTS``."""
    monkeypatch.setattr(sys, "argv", ["outrider", "rootcause", "backtest", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    return left.value.code, captured.out, captured.err


def test_the_answer_has_the_agreed_keys(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "--format", "petshop", FOLDER, "-o", "json")
    result = json.loads(out)
    assert code == 0
    assert list(result)[:4] == ["cases", "top1", "top3", "seconds_per_case"]
    assert (result["cases"], result["top1"], result["top3"]) == (3, 1.0, 1.0)
    assert result["seconds_per_case"] > 0


def test_the_table_lists_parts_kinds_and_missed_causes(monkeypatch, capsys, folder):
    label = folder / "test" / "issue_2" / "target.json"
    label.write_text(label.read_text().replace('"node": "search"', '"node": "audit"'))
    code, out, _ = call(monkeypatch, capsys, folder, "-o", "table")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["all", "3", "0.667", "0.667"] in lines
    assert ["train", "1", "1.000", "1.000"] in lines
    assert ["failed", "requests", "of", "audit", "1", "0.000", "0.000"] in lines
    assert "test/issue_2" in out
    assert "search, front" in out
    code, out, _ = call(monkeypatch, capsys, folder, "-o", "table", "--lang", "zh")
    assert (code, "audit：请求失败" in out, "训练部分" in out, "measured." in out) == (0, True, True, False)


def test_the_json_has_the_content_of_the_table(monkeypatch, capsys, folder):
    label = folder / "test" / "issue_2" / "target.json"
    label.write_text(label.read_text().replace('"node": "search"', '"node": "audit"'))
    _, out, _ = call(monkeypatch, capsys, folder, "-o", "json")
    result = json.loads(out)
    assert result["by_part"]["train"] == {"cases": 1, "top1": 1.0, "top3": 1.0}
    assert result["by_part"]["test"] == {"cases": 2, "top1": 0.5, "top3": 0.5}
    assert {"symptom": "failures", "cause": "audit", "cases": 1, "top1": 0.0, "top3": 0.0} in result["by_kind"]
    assert sum(row["cases"] for row in result["by_kind"]) == result["cases"]
    (missed,) = result["not_first"]
    assert (missed["part"], missed["name"], missed["cause"], missed["place"]) == ("test", "issue_2", "audit", None)
    assert missed["named"][:2] == ["search", "front"]


def test_folders_are_read_in_numeric_order_and_measured_services_join_the_graph():
    result = petshop.open_folder(FOLDER)
    assert [issue.name for issue in result.issues] == ["issue_0", "issue_2", "issue_10"]
    assert result.services == ("front", "cart", "search", "db", "audit")
    assert result.step_seconds == 300
    edges = {
        (result.services[caller], result.services[callee])
        for caller, callee in zip(result.graph.caller, result.graph.callee, strict=True)
    }
    assert edges == {("front", "cart"), ("front", "search"), ("cart", "db"), ("search", "db")}


def test_an_incident_is_read_with_its_units():
    issue = petshop.read_issue(FOLDER / "test" / "issue_2")
    assert (issue.part, issue.name, issue.target, issue.cause) == ("test", "issue_2", "front", "search")
    assert (issue.symptom, issue.since) == (Symptom.FAILURES, 1700200700)
    calls = issue.measured.calls(("search", "nobody"))
    assert calls.success_ratio[0, 2] == pytest.approx(0.83607)
    assert calls.latency_seconds[0, 0] == pytest.approx(0.07661)
    assert calls.requests[0, 4] == 61
    assert np.isnan(calls.requests[1]).all()


def test_the_ranker_sees_steps_before_and_since_and_never_the_label():
    seen = []

    def nobody(case):
        seen.append((case.issue.name, case.before.requests.shape[1], case.incident.requests.shape[1], case.target))
        return Answer((), "asleep")

    result = rootcause.backtest(FOLDER, ranker=nobody)
    assert seen == [("issue_0", 2, 3, 0), ("issue_2", 2, 3, 0), ("issue_10", 2, 3, 0)]
    shown = result.as_dict()
    assert {name: shown[name] for name in ("cases", "top1", "top3", "seconds_per_case")} == {
        "cases": 3, "top1": 0.0, "top3": 0.0, "seconds_per_case": None,
    }  # fmt: skip
    assert [row["reason"] for row in shown["not_first"]] == ["asleep"] * 3
    assert {case.reason for case in result.cases} == {"asleep"}


def test_the_answer_does_not_depend_on_the_label(folder):
    for label in folder.glob("*/*/target.json"):
        document = json.loads(label.read_text())
        label.write_text(json.dumps(document | {"root_cause": {"node": "front"}}))
    changed, original = rootcause.backtest(folder), rootcause.backtest(FOLDER)
    assert [case.named for case in changed.cases] == [case.named for case in original.cases]


def test_the_third_place_counts_for_top3_only():
    audit_front_db = Answer(((4, 0.5), (0, 0.3), (3, 0.2)))
    result = rootcause.backtest(FOLDER, ranker=lambda _: audit_front_db)
    by_cause = {case.cause: case.place for case in result.cases}
    assert by_cause == {"db": 3, "search": None, "cart": None}
    assert (result.top(1), result.top(3)) == (0.0, pytest.approx(1 / 3))


def test_progress_is_reported_and_ends_at_one():
    reported = []
    rootcause.backtest(FOLDER, progress=lambda stage, share: reported.append((stage, share)))
    assert {stage for stage, _ in reported} == {"backtest"}
    assert reported[-1][1] == 1.0
    assert all(earlier < later for (_, earlier), (_, later) in pairwise(reported))


def test_empty_cells_and_a_window_without_values_give_no_verdict(folder):
    path = folder / "test" / "issue_2" / "metrics.csv"
    lines = path.read_text().splitlines()
    width = lines[0].count(",")
    path.write_text("\n".join([*lines[:4], *(line.split(",")[0] + "," * width for line in lines[4:])]))
    case = rootcause.backtest(folder).cases[1]
    assert (case.place, case.named, case.reason) == (None, (), "no_values")


def spoil(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


BROKEN = {
    "no folder": (shutil.rmtree, "is not a folder"),
    "no issues": (lambda at: [shutil.rmtree(at / part) for part in ("train", "test")], "has no issues"),
    "no graph": (lambda at: (at / "graph.csv").unlink(), "graph.csv cannot be read"),
    "no quiet window": (lambda at: shutil.rmtree(at / "noissue"), "metrics.csv cannot be read"),
    "empty graph": (lambda at: (at / "graph.csv").write_text(""), "graph.csv:1: expected the names"),
    "an unknown row": (lambda at: spoil(at / "graph.csv", "\ncart,", "\nkart,"), "graph.csv:3: the row 'kart'"),
    "a short row": (lambda at: spoil(at / "graph.csv", "\ncart,0.0,", "\ncart,"), "graph.csv:3: 4 cells, expected 5"),
    "a link that is not a number": (
        lambda at: spoil(at / "graph.csv", "front,0.0,1.0", "front,0.0,yes"),
        "graph.csv:2",
    ),
    "wrong headings": (
        lambda at: spoil(at / "noissue/metrics.csv", "microservice", "service"),
        "metrics.csv:1: expected three rows of headings",
    ),
    "wrong columns": (
        lambda at: (at / "noissue/metrics.csv").write_text(
            "microservice,front\nmetric,cpu\nstatistic,p50\n1.0,2\n2.0,3\n"
        ),
        "metrics.csv:2: no column is",
    ),
    "a value that is not a number": (
        lambda at: spoil(at / "noissue/metrics.csv", ",100.0,", ",full,"),
        "metrics.csv:5:",
    ),
    "one quiet step": (
        lambda at: (at / "noissue/metrics.csv").write_text(
            "".join((FOLDER / "noissue/metrics.csv").read_text().splitlines(keepends=True)[:5])
        ),
        "at least two steps",
    ),
    "decreasing timestamps": (
        lambda at: spoil(at / "test/issue_2/metrics.csv", "1700200400.0", "1600000000.0"),
        "must increase",
    ),
    "no label": (lambda at: (at / "test/issue_2/target.json").unlink(), "target.json cannot be read"),
    "a label that is not JSON": (lambda at: (at / "test/issue_2/target.json").write_text("{"), "is not JSON"),
    "a label without target": (lambda at: (at / "test/issue_2/target.json").write_text("[]"), "target is missing"),
    "an unknown metric": (
        lambda at: spoil(at / "test/issue_2/target.json", "availability", "color"),
        "target.metric is 'color'",
    ),
    "no timestamp": (lambda at: spoil(at / "test/issue_2/target.json", "1700200700", '"noon"'), "target.timestamp"),
    "a late timestamp": (
        lambda at: spoil(at / "test/issue_2/target.json", "1700200700", "1800000000"),
        "no step lies after target.timestamp",
    ),
    "an unknown target": (lambda at: spoil(at / "test/issue_2/target.json", '"front"', '"back"'), "'back' is not in"),
    "an unnamed cause": (lambda at: spoil(at / "test/issue_2/target.json", '"search"', "null"), "must name a service"),
    "bytes": (lambda at: (at / "graph.csv").write_bytes(b"\xff\xfe\x00"), "not CSV in UTF-8"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_bad_input_is_reported_in_one_sentence_with_the_file(monkeypatch, capsys, folder, how):
    breaks, expected = BROKEN[how]
    breaks(folder)
    code, out, err = call(monkeypatch, capsys, folder)
    assert code == 2
    assert expected in err
    assert "Traceback" not in err
    assert json.loads(out)["error"]["message"] in err
    assert str(folder) in err


def test_an_unknown_format_is_refused(monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "--format", "parquet", FOLDER)
    assert code == 2
    assert "petshop" in err


def test_errors_are_usage_errors_for_callers_too(tmp_path):
    with pytest.raises(UsageError, match="is not a folder"):
        rootcause.backtest(tmp_path / "nowhere")
