"""The command line: exit codes, one JSON document, errors with a hint."""

import contextlib
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from unittest import mock
from urllib.parse import quote

import pytest
import yaml

from collectors.mapping import registry
from outrider.clock import from_unix, rfc3339
from outrider.ports import CycleCommit
from outrider.testing.story import Story
from outrider.testing.trouble import INCIDENT
from service.cli import main, tree
from service.cli.core import lazy
from service.config.settings import Settings, StoreSettings
from service.wiring import stores as wiring_stores

ROOT = Path(__file__).parents[3]
RECORDINGS = ROOT / "tests" / "recordings"


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


class Terminal(io.StringIO):
    """Standard output of a person."""

    def isatty(self):
        return True


def run(*arguments, cwd, out=None):
    """In this process, as ``outrider ARGUMENTS`` would: starting Python for each would take a minute."""
    out, err = out or io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        mock.patch.object(sys, "argv", ["outrider", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        main()
    return Done(left.value.code, out.getvalue(), err.getvalue())


def answer(*arguments, cwd, code=0):
    done = run(*arguments, cwd=cwd)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_version_in_a_process_of_its_own(tmp_path):
    command = [sys.executable, "-m", "service.cli", "version", "-o", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert set(json.loads(done.stdout)) >= {"version", "python", "database"}


HEAVY = ("sklearn", "prophet", "pandas", "scipy", "statsforecast", "streamlit", "kubernetes", "fastapi")


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "import service.cli.tree",
        "sys.argv[1:] = ['--help']; main()",
        "sys.argv[1:] = ['version']; main()",
        "sys.argv[1:] = ['collect', 'once', '--page', f'vllm={page}']; main()",
    ],
)
def test_commands_load_only_what_they_need(statement, tmp_path):
    page = tmp_path / "page.txt"
    page.write_text("vllm:num_requests_running 1\n")
    program = (
        f"import sys, contextlib; from service.cli import main; page = {str(page)!r}\n"
        f"with contextlib.suppress(SystemExit): {statement}\n"
        f"sys.stderr.write(' '.join(name for name in {HEAVY} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stderr == ""
    assert ("engine_requests_running" in done.stdout) == ("collect" in statement)


@pytest.mark.parametrize("name", tree.COMMANDS)
def test_the_list_of_commands_matches_the_help_of_each(name):
    help_text = lazy.load(name, tree.COMMANDS[name]).help
    assert " ".join(help_text.split("\n\n")[0].split()) == tree.COMMANDS[name].summary


FORMULA = ("capacity", "formula", "--qps", "40", "--tokens", "300", "--batch", "32", "--tokens-per-second", "25")


def test_the_formula_with_both_readings_of_batch(tmp_path):
    per_replica = answer(*FORMULA, "--tp", "4", cwd=tmp_path)
    assert (per_replica["units_raw"], per_replica["unit"]) == (18.75, "replica")
    assert (per_replica["replicas"], per_replica["gpus"]) == (19, 76)
    per_gpu = answer(*FORMULA, "--tp", "4", "--batch-per", "gpu", cwd=tmp_path)
    assert (per_gpu["replicas"], per_gpu["gpus"]) == (5, 20)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nonsense",), "nonsense"),
        (("version", "--bad-option"), "--bad-option"),
        (("capacity", "formula", "--qps", "-1", *FORMULA[4:]), "--qps"),
        (("config", "check", "missing.yaml"), "missing.yaml"),
        (("forecast", "backtest", "x.csv", "--forecasters", "arima"), "arima"),
        (("forecast", "kept", "--service", "nobody"), "nobody"),
        (("replay", "missing.metrics.jsonl.gz"), "missing.metrics.jsonl.gz"),
        (("replay", str(RECORDINGS / "a_idle.metrics.jsonl.gz"), "--adapter", "abacus"), "abacus"),
        ((), "Missing command"),
        (("config",), "Missing command"),
        (("collect", "once", "--page", "nothing"), "ADAPTER=PATH_OR_URL"),
        (("collect", "once", "--page", "abacus=x.txt"), "abacus"),
        (("alerts", "show", "0000"), "0000"),
        (("alerts", "ack", "0000"), "0000"),
        (("record", "--out", "flight"), "no targets"),
        (("incidents", "show", "inc-none"), "inc-none"),
        (("capacity", "plan", "--service", "none"), "none"),
        (("report", "weekly", "--week", "soon"), "soon"),
        (("report", "weekly", "--format", "papyrus"), "papyrus"),
        (("version", "--lang", "fr"), "'fr' is not one of 'en', 'zh'"),
        (("forecast", "kept", "--hours", "0.1"), "--hours"),
        (("alerts", "list", "--limit", "many"), "--limit"),
    ],
)
def test_wrong_usage_gets_one_sentence_and_a_hint(tmp_path, arguments, expected):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert expected in error["message"]
    assert error["hint"]
    assert "Traceback" not in done.stderr
    assert not re.search(r"Value error|Input should", done.stderr + done.stdout), "words of a library"


@pytest.mark.parametrize("arguments", [("nonsense", "-o", "table"), ("alerts", "show", "0000", "--output=table")])
def test_errors_of_an_explicit_table_are_text_on_standard_error(tmp_path, arguments):
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("outrider: ")
    assert len(done.stderr.splitlines()) == 2, "the message and the hint"


@pytest.mark.parametrize(("given", "parse"), [("-ojson", json.loads), ("--output=yaml", yaml.safe_load)])
def test_errors_have_the_requested_format(tmp_path, given, parse):
    done = run("alerts", "show", "0000", given, cwd=tmp_path)
    assert done.returncode == 2
    assert set(parse(done.stdout)["error"]) == {"message", "hint"}


def test_json_that_was_requested_is_also_printed_on_a_terminal(tmp_path):
    shown = run("alerts", "show", "0000", "-o", "json", cwd=tmp_path, out=Terminal())
    default = run("alerts", "show", "0000", cwd=tmp_path, out=Terminal())
    assert json.loads(shown.stdout)["error"]["message"]
    assert default.stdout == "", "a person reads standard error"


def test_a_misspelt_choice_names_the_nearest_one(tmp_path):
    done = run("alerts", "list", "--state", "firin", "-o", "table", cwd=tmp_path)
    assert done.returncode == 2
    assert "'firin' is not one of 'pending', 'firing', 'resolved'; did you mean \"firing\"?" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (("notify", "test", "inbx"), "inbox"),
        (("collect", "once", "--page", "vlm=x.txt"), "vllm"),
        (("collect", "rules", "--adapter", "vlm"), "vllm"),
        (("replay", "x.metrics.jsonl.gz", "--emit", "alrts"), "alerts"),
        (("forecast", "backtest", "x.csv", "--forecasters", "prophte"), "prophet"),
        (("drill", "run", "gpu-lst"), "gpu-lost"),
    ],
)
def test_an_unknown_name_names_the_nearest_known_one(tmp_path, arguments, near):
    (tmp_path / "outrider.yaml").write_text("notify: {channels: {inbox: {type: webhook, url: 'http://127.0.0.1:1'}}}\n")
    done = run(*arguments, "-o", "table", cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(rf"did you mean \"?{near}\"?", done.stderr), done.stderr


def test_a_mistake_in_a_playbook_has_its_file(tmp_path):
    (tmp_path / "outrider.yaml").write_text("remediation: {playbooks: [own.yaml]}\n")
    (tmp_path / "own.yaml").write_text("playbooks:\n  gpu-lost: {steps: [{action: scale, target: node}]}\n")
    checked = answer("config", "check", "outrider.yaml", cwd=tmp_path, code=1)
    (error,) = checked["errors"]
    assert (error["file"], error["line"], error["key"]) == ("own.yaml", 2, "playbooks.gpu-lost.steps[0].target")
    assert "expected services" in error["message"]


def test_a_written_configuration_is_valid_and_errors_name_their_line(tmp_path):
    answer("config", "init", "--prometheus", "http://127.0.0.1:9090", cwd=tmp_path)
    assert answer("config", "check", "outrider.yaml", cwd=tmp_path) == {"valid": True, "errors": [], "warnings": []}
    (tmp_path / "bad.yaml").write_text("cluster: a\nstor: {}\n")
    checked = answer("config", "check", "bad.yaml", cwd=tmp_path, code=1)
    assert checked["valid"] is False
    assert [(error["line"], error["key"]) for error in checked["errors"]] == [(2, "stor")]


def test_writes_require_the_api(tmp_path):
    answer("db", "upgrade", cwd=tmp_path)
    (tmp_path / "outrider.yaml").write_text("api: {port: 1, token_file: token}\n")
    (tmp_path / "token").write_text("secret-token")
    done = run("remediate", "pause", cwd=tmp_path)
    assert done.returncode == 3
    assert "outrider serve" in json.loads(done.stdout)["error"]["hint"]
    assert "secret-token" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", [("collect", "once"), ("remediate", "pause")])
def test_unavailable_dependencies_exit_with_3(tmp_path, command):
    answer("config", "init", "--prometheus", "http://127.0.0.1:1", cwd=tmp_path)
    done = run(*command, cwd=tmp_path)
    assert done.returncode == 3
    error = json.loads(done.stdout)["error"]
    assert "127.0.0.1" in error["message"]
    assert error["hint"]


def test_a_refused_page_is_unavailable_and_an_invalid_file_is_unreadable(tmp_path):
    assert run("collect", "once", "--page", "vllm=http://127.0.0.1:1/metrics", cwd=tmp_path).returncode == 3
    (tmp_path / "page.txt").write_text("<html>no</html>\n")
    assert run("collect", "once", "--page", "vllm=page.txt", cwd=tmp_path).returncode == 2


def test_reads_of_an_empty_store_are_empty(tmp_path):
    for command in (
        ("alerts", "list"),
        ("incidents", "list"),
        ("remediate", "list"),
        ("capacity", "plan"),
        ("forecast", "kept"),
    ):
        assert answer(*command, cwd=tmp_path) == []


@pytest.fixture
def incident_at_hand(tmp_path):
    """A store in the middle of an incident; what the command line writes to the API is caught."""
    story = Story(history=timedelta(minutes=1))
    settings = Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/.outrider/outrider.db"))
    with wiring_stores.stores(settings) as (state, metrics):
        story.fill(state, metrics)
        folded = next(alert for alert in state.alerts() if alert.incident == INCIDENT)
        alone = replace(folded, fingerprint="alone", incident=None)
        state.commit(CycleCommit(replace(state.cycles(limit=1)[0], id="one-more"), alerts=(alone,)))
    with mock.patch("service.cli.core.client.write", return_value={}) as written:
        yield folded.fingerprint, written


def test_an_incident_is_acknowledged_by_its_id_or_by_one_of_its_alerts(tmp_path, incident_at_hand):
    fingerprint, written = incident_at_hand
    for identifier in (INCIDENT, fingerprint):
        answer("alerts", "ack", identifier, cwd=tmp_path)
    requests = [call.args[1:3] for call in written.call_args_list]
    assert requests == [("POST", f"/incidents/{quote(INCIDENT, safe='')}/ack")] * 2


def test_a_silence_is_previewed_from_the_store_and_written_by_the_api(tmp_path, incident_at_hand):
    _, written = incident_at_hand
    shown = answer("alerts", "silence", "--match", 'cluster=~".+"', "--preview", cwd=tmp_path)
    assert (shown["muted"], shown["in_force"]) == (shown["firing"], True)
    assert shown["firing"] > 0
    assert INCIDENT in shown["incidents"]
    assert answer("alerts", "silence", "--match", "node=nowhere", "--preview", cwd=tmp_path)["muted"] == 0
    assert not written.called
    options = ("--between", "22:00-02:00", "--days", "mon,tue", "--timezone", "Asia/Shanghai", "--dependents")
    answer("alerts", "silence", "--match", "node=n1", "--rule", "r", *options, cwd=tmp_path)
    (call,) = written.call_args_list
    method, path, body = call.args[1:]
    assert (method, path, body["rule"], body["matchers"], body["dependents"]) == (
        "POST",
        "/silences",
        "r",
        ["node=n1"],
        True,
    )
    assert body["window"] == {"start": "22:00", "end": "02:00", "days": ["mon", "tue"], "timezone": "Asia/Shanghai"}
    assert answer("alerts", "silences", cwd=tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--match", "node"), "not a matcher"),
        (("--match", "rule!=x"), "select every alert"),
        (("--match", "node=n1", "--between", "late-02:00"), "time of day"),
        (("--match", "node=n1", "--between", "22:00-02:00", "--timezone", "Mars/Base"), "time zone"),
        (("--match", "node=n1", "--days", "mon"), "--between"),
        (("--match", "node=n1", "--from", "soon"), "--from"),
        (("--match", "node=n1", "--for", "5w"), "at most 30 days"),
    ],
)
@pytest.mark.usefixtures("incident_at_hand")
def test_mistakes_of_a_silence_get_one_sentence(tmp_path, arguments, expected):
    done = run("alerts", "silence", *arguments, "--preview", cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stdout


@pytest.mark.usefixtures("incident_at_hand")
def test_the_knowledge_graph_is_shown_queried_and_drawn(tmp_path):
    shown = answer("knowledge", "show", "gpu-lost", "-o", "json", cwd=tmp_path)
    assert "action:cordon" in {one["id"] for one in shown["nodes"]}
    causes = answer("knowledge", "ask", "causes", "engine-dead", "service/chat", "-o", "json", cwd=tmp_path)
    assert "gpu-oom" in {row["fault"] for row in causes["causes"]}
    explained = answer("knowledge", "ask", "explains", "traffic-surge", "service/chat", "-o", "json", cwd=tmp_path)
    assert explained["explains"]
    assert answer("knowledge", "ask", "path", "gpu-lost", "cordon", "-o", "json", cwd=tmp_path)["path"]
    assert run("knowledge", "draw", INCIDENT, cwd=tmp_path).stdout.startswith("digraph")
    assert run("knowledge", "draw", "gpu-lost", "--format", "mermaid", cwd=tmp_path).stdout.startswith("flowchart LR")


@pytest.mark.usefixtures("incident_at_hand")
def test_an_incident_is_explained(tmp_path):
    explanation = answer("rootcause", "explain", INCIDENT, "-o", "json", cwd=tmp_path)
    assert explanation["team"] == "hardware"
    assert {"what", "for", "others", "check", "remedy", "runbook", "owner"} <= {
        one["name"] for one in explanation["sections"]
    }
    assert "硬件团队" in run("rootcause", "explain", INCIDENT, "-o", "table", "--lang", "zh", cwd=tmp_path).stdout
    assert run("rootcause", "explain", "none", cwd=tmp_path).returncode == 2


@pytest.mark.usefixtures("incident_at_hand")
@pytest.mark.parametrize("name", ["inc-unknown", "gpu-lots"])
def test_unknown_names_of_the_knowledge_graph_are_rejected(tmp_path, name):
    done = run("knowledge", "draw", name, cwd=tmp_path)
    assert (done.returncode, done.stdout.startswith("digraph")) == (2, False)
    assert name in done.stderr


def test_an_alert_of_no_incident_cannot_be_acknowledged(tmp_path, incident_at_hand):
    _, written = incident_at_hand
    error = answer("alerts", "ack", "alone", cwd=tmp_path, code=2)["error"]
    assert "belongs to no incident" in error["message"]
    assert not written.called


def test_collect_once_names_what_needs_two_scrapes(tmp_path):
    page = (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
        "# TYPE vllm:generation_tokens_total counter\n"
        'vllm:generation_tokens_total{engine="0",model_name="m"} 500.0\n'
    )
    (tmp_path / "page.txt").write_text(page)
    result = answer("collect", "once", "--page", "vllm=page.txt", cwd=tmp_path)
    assert result["targets"] == [
        {**result["targets"][0], "target": "page", "adapter": "vllm", "up": True, "samples": 2, "error": None}
    ]
    by_name = {row["signal"]: row for row in result["signals"]}
    assert by_name["engine_requests_running"]["value"] == 3.0
    assert by_name["engine_generation_tokens_per_second"]["value"] is None
    assert by_name["engine_generation_tokens_per_second"]["reason"] == "needs_two_scrapes"


def test_doctor_reports_missing_metrics_and_affected_features(tmp_path):
    (tmp_path / "page.txt").write_text("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3.0\n")
    target = answer("doctor", "--page", "vllm=page.txt", cwd=tmp_path)["targets"][0]
    assert "engine_requests_running" in target["present"]
    missing = {entry["signal"]: entry for entry in target["missing"]}
    assert missing["engine_kv_cache_usage_ratio"]["expected"]
    assert missing["engine_kv_cache_usage_ratio"]["fix"]


def test_doctor_reports_the_same_in_both_languages(tmp_path):
    (tmp_path / "page.txt").write_text('DCGM_FI_DEV_GPU_TEMP{UUID="g"} 41\n')
    target = answer("doctor", "--page", "dcgm=page.txt", "--lang", "zh", cwd=tmp_path)["targets"][0]
    assert "计数器文件" in target["missing"][0]["fix"]
    assert target["old_spellings"] == {"hw_accel_temperature_celsius": "DCGM_FI_DEV_GPU_TEMP"}
    table = run("doctor", "--page", "dcgm=page.txt", "-o", "table", cwd=tmp_path).stdout
    assert "deprecated name in use" in table
    assert "counters file" in table


def test_below_the_first_bucket_only_the_bound_is_shown(tmp_path):
    page = "".join(f'vllm:e2e_request_latency_seconds_bucket{{le="{le}"}} 9\n' for le in ("0.3", "0.5", "+Inf"))
    (tmp_path / "page.txt").write_text(page)
    rows = answer("collect", "once", "--page", "vllm=page.txt", cwd=tmp_path)["signals"]
    (p99,) = (row for row in rows if row["signal"] == "engine_e2e_seconds" and row.get("quantile") == 0.99)
    assert (p99["value"], p99["below_first_bucket"], p99["since"]) == (0.3, True, "start")
    assert "< 300 ms" in run("collect", "once", "--page", "vllm=page.txt", "-o", "table", cwd=tmp_path).stdout


def test_a_page_is_read_with_a_custom_adapter(tmp_path, monkeypatch):
    monkeypatch.setitem(registry.ADAPTERS, "acme", "")  # so that it is forgotten after the test
    (tmp_path / "acme.yaml").write_text(
        "adapter: acme\ntarget: replica\nentities:\n  replica: {target: true}\n"
        "signals:\n  engine_requests_running: {gauge: acme_running}\n"
    )
    (tmp_path / "outrider.yaml").write_text("collect: {adapters: [acme.yaml]}\n")
    (tmp_path / "page.txt").write_text("acme_running 7\n")
    rows = answer("collect", "once", "--page", "acme=page.txt", cwd=tmp_path)["signals"]
    assert [row["value"] for row in rows if row["signal"] == "engine_requests_running"] == [7]


@pytest.mark.slow
def test_replay_prints_the_documented_json(tmp_path):
    result = answer("replay", str(RECORDINGS / "g_sigkill.metrics.jsonl.gz"), cwd=tmp_path)
    assert set(result) >= {"from", "to", "cycles", "signals", "alerts", "incidents"}
    assert result["signals"] == []
    incident = result["incidents"][0]
    assert set(incident) >= {
        "id", "layer", "priority", "opened_at", "resolved_at", "suspected_cause", "hypotheses", "rejected",
        "alerts", "pages", "summary",
    }  # fmt: skip
    assert incident["suspected_cause"]["fault"] == "engine-dead"
    assert set(result["alerts"][0]) >= {
        "fingerprint", "rule", "priority", "state", "entity", "starts_at", "ends_at", "incident", "summary",
        "value", "muted_by",
    }  # fmt: skip


def test_a_report_on_an_empty_store_is_written_in_both_languages(tmp_path):
    for language in ("en", "zh"):
        result = answer("report", "weekly", "--lang", language, "--out", "out", cwd=tmp_path)
        assert result["empty"] is True
        assert all((tmp_path / path).read_text(encoding="utf-8").strip() for path in result["paths"])
        assert len(result["paths"]) == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("collect", "backfill", "--since", "yesterday"), "--since: 'yesterday' is not a valid timestamp"),
        (("collect", "backfill", "--until", "2026-03-04"), "--until: '2026-03-04' has no time zone"),
        (("collect", "backfill", "--since", "0001-01-01T00:00:00+14:00"), "outside the years"),
        (("collect", "backfill", "--days", "1e9"), "--days"),
        (("collect", "backfill", "--days", "nan"), "--days"),
        (("capacity", "plan", "--at", "yesterday"), "--at: "),
        (("capacity", "explain", "--at", "soon"), "--at: "),
        (("capacity", "formula", "--qps", "inf", "--tokens", "1", "--batch", "1", "--tokens-per-second", "1"), "--qps"),
        (("collect", "rules", "--window", "five minutes"), "--window: "),
        (("collect", "rules", "--window", "0s"), "--window: "),
        (("alerts", "silence", "--rule", "r", "--for", "2 hours"), "--for: "),
        (("alerts", "silence", "--rule", "r", "--for", "99999999999w"), "--for: "),
        (("record", "--out", "flight", "--minutes", "nan"), "--minutes"),
        (("record", "--out", "flight", "--minutes", "1e300"), "--minutes"),
        (("demo", "--headless", "--minutes", "nan"), "--minutes"),
        (("probe", "--url", "http://127.0.0.1:9", "--timeout", "soon"), "soon"),
        (("report", "weekly", "--week", "last"), "last"),
        (("forecast", "backtest", "t.csv", "--horizon", "soon"), "--horizon: 'soon'"),
        (("forecast", "backtest", "t.csv", "--horizon", "30m,0s"), "--horizon: '0s' is not longer than 0"),
        (("forecast", "backtest", "t.csv", "--horizon", "30m,15d"), "--horizon 15d is too long"),
        (("forecast", "kept", "--hours", "1e12"), "--hours"),
    ],
)
def test_invalid_timestamps_and_durations_get_one_sentence(tmp_path, arguments, expected):
    (tmp_path / "t.csv").write_text(
        "time_utc,requests_per_second\n2026-01-01T00:00:00Z,1\n2026-01-01T00:10:00Z,1\n", encoding="utf-8"
    )
    done = run(*arguments, "-o", "json", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert expected in json.loads(done.stdout)["error"]["message"]


@pytest.mark.slow
def test_a_recording_without_a_scrape_and_one_of_another_engine_are_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    shown = answer("replay", "empty.txt", "-o", "json", cwd=tmp_path, code=2)
    assert shown["error"]["message"] == "empty.txt contains no scrape"
    recorded = str(RECORDINGS / "a_idle.metrics.jsonl.gz")
    shown = answer("replay", recorded, "--adapter", "tgi", "-o", "json", cwd=tmp_path, code=2)
    assert "no metric of tgi; it matches vllm" in shown["error"]["message"]


def test_events_in_the_result_are_not_logged_again(tmp_path):
    done = run("collect", "once", "--page", "vllm=http://127.0.0.1:9/metrics", "-o", "json", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.count("refuses connections") == 1


def test_above_the_last_bucket_only_the_bound_is_shown(tmp_path):
    counts = {"0.3": 1, "0.5": 2, "+Inf": 9}
    page = "".join(f'vllm:e2e_request_latency_seconds_bucket{{le="{le}"}} {n}\n' for le, n in counts.items())
    (tmp_path / "page.txt").write_text(page)
    rows = answer("collect", "once", "--page", "vllm=page.txt", cwd=tmp_path)["signals"]
    (p99,) = (row for row in rows if row["signal"] == "engine_e2e_seconds" and row.get("quantile") == 0.99)
    assert (p99["value"], p99["above_last_bucket"]) == (0.5, True)
    assert "below_first_bucket" not in p99
    shown = run("collect", "once", "--page", "vllm=page.txt", "-o", "table", cwd=tmp_path).stdout
    assert "> 500 ms" in shown
    assert "since start" in shown


@pytest.mark.slow
def test_headings_and_summaries_are_in_the_requested_language(tmp_path):
    (tmp_path / "page.txt").write_text("vllm:num_requests_running 3.0\n")
    (tmp_path / "good.yaml").write_text("cluster: c\n")
    (tmp_path / "bad.yaml").write_text("clustr: c\n")
    recorded = str(RECORDINGS / "a_idle.metrics.jsonl.gz")
    for words, arguments in (
        (("目标", "信号", "是"), ("collect", "once", "--page", "vllm=page.txt")),
        (("个信号", "缺少的信号", "解决办法"), ("doctor", "--page", "vllm=page.txt")),
        (("已回放", "个周期"), ("replay", recorded)),
        (("有效",), ("config", "check", "good.yaml")),
        (("有 1 处错误",), ("config", "check", "bad.yaml")),
    ):
        shown = run(*arguments, "--lang", "zh", "-o", "table", cwd=tmp_path).stdout
        assert all(word in shown for word in words), shown


def _traffic(folder, days=5):
    lines = ["time_utc,requests_per_second"]
    start = 1_767_225_600
    for slot in range(days * 144):
        at = from_unix(float(start + 600 * slot))
        lines.append(f"{rfc3339(at)},{20 + 10 * math.sin(slot / 144 * 2 * math.pi):.3f}")
    file = folder / "wave.csv"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@pytest.mark.slow
def test_a_scaling_replay_is_one_document_with_the_agreed_keys_and_a_picture(tmp_path):
    file = _traffic(tmp_path)
    found = answer("capacity", "replay", str(file), "--startup", "5m", "--plot", "drawn", "-o", "json", cwd=tmp_path)
    row = found["traces"][0]
    keys = {"gpu_hours_ratio", "requests_waiting_over_2s_ratio", "oracle_ratio", "keda_ratio", "hpa_ratio"}
    assert keys | {"name", "reversals_within_30min"} <= row.keys()
    assert row["name"] == "wave"
    assert (tmp_path / "drawn" / "wave.svg").read_text(encoding="utf-8").startswith("<svg")
    assert row["keda_waiting_over_2s_ratio"] is not None
    output = run("capacity", "replay", str(file), "--no-prophet", "--lang", "en", "-o", "table", cwd=tmp_path).stdout
    assert "of the static peak" in output
    assert f"{100 * row['keda_waiting_over_2s_ratio']:.2f} %" in output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("replay", "absent.csv"), "absent.csv cannot be read"),
        (("replay", "short.csv"), "not enough to replay"),
        (("replay", "short.csv", "--startup", "0s"), "--startup"),
        (("warm", "--service", "chat", "--phase", "pull=soon"), "--phase 'pull=soon'"),
    ],
)
def test_invalid_traces_get_a_reason_and_a_hint(tmp_path, arguments, expected):
    (tmp_path / "short.csv").write_text(
        "time_utc,requests_per_second\n2026-01-01T00:00:00Z,1\n2026-01-01T00:10:00Z,2\n", encoding="utf-8"
    )
    found = answer("capacity", *arguments, "-o", "json", cwd=tmp_path, code=2)
    assert expected in found["error"]["message"]
    assert found["error"]["hint"]


@pytest.mark.slow
def test_every_strategy_is_compared_and_one_recommended(tmp_path):
    found = answer("capacity", "strategies", str(_traffic(tmp_path)), "-o", "json", cwd=tmp_path)
    row = found["traces"][0]
    assert row["traffic_class"] == "diurnal"
    assert row["recommended"] in {each["name"] for each in row["strategies"]}


def test_documents_for_faster_starts_are_written(tmp_path):
    arguments = ("--service", "chat", "--phase", "pull=140", "--image", "vllm/vllm-openai:v0.11.0")
    found = answer("capacity", "warm", *arguments, "--documents", "warm.yaml", "-o", "json", cwd=tmp_path)
    assert found["attack_first"] == "pull"
    written = list(yaml.safe_load_all((tmp_path / "warm.yaml").read_text(encoding="utf-8")))
    kinds = ["PriorityClass", "Deployment", "PriorityClass"]
    assert [one["kind"] for one in written] == [*kinds, "DaemonSet"]
    assert found["pre_pull"]["reason"] == "no_node_known"
    assert "referenced by tag" in found["pre_pull"]["why"]
    found = answer(
        "capacity", "warm", *arguments, "--node", "a", "--node", "b", "--documents", "warm.yaml", cwd=tmp_path
    )
    assert (found["pre_pull"]["kind"], found["pre_pull"]["count"]) == ("job", 2)
    written = list(yaml.safe_load_all((tmp_path / "warm.yaml").read_text(encoding="utf-8")))
    assert [one["kind"] for one in written] == [*kinds, "Job", "Job"]
    assert not (tmp_path / ".outrider").exists(), "a question of documents makes no store"


def test_a_service_without_observed_starts_has_no_phases(tmp_path):
    found = answer("capacity", "warm", "--service", "chat", "-o", "json", cwd=tmp_path)
    assert found["starts"] == 0
    assert found["attack_first"] is None
