"""``outrider remediate plan``: steps, answers of the guards, requests; nothing is decided or recorded."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outrider.testing import names
from outrider.testing.story import Story
from store import factory
from tests.service.cli.test_cli import answer, run


@pytest.fixture
def folder(tmp_path):
    """A store with a lost GPU, for a platform that may act on a simulated fleet."""
    url = f"sqlite:///{tmp_path}/o.db"
    (tmp_path / "outrider.yaml").write_text(
        f"store: {{url: '{url}'}}\n"
        "remediation: {autonomy: act, dry_run: false, actuator: simulated, control_url: 'http://127.0.0.1:9'}\n"
    )
    state_url, metrics_url = factory.urls_of(url)
    answer("db", "upgrade", "-o", "json", cwd=tmp_path)
    state, metrics = factory.open_state(state_url), factory.open_metrics(metrics_url)
    Story(history=timedelta(minutes=3)).fill(state, metrics)
    state.close()
    metrics.close()
    return tmp_path


def verdicts(row):
    return {guard["name"]: guard["verdict"] for guard in row["guards"]}


def test_the_steps_of_a_named_fault_have_guards_and_exact_requests(folder):
    before = answer("remediate", "list", "-o", "json", cwd=folder)
    rows = answer(
        "remediate",
        "plan",
        "--fault",
        "gpu-thermal-throttle",
        "--entity",
        names.LOST_NODE.name,
        "-o",
        "json",
        cwd=folder,
    )
    assert "cordon" in [row["kind"] for row in rows]
    (cordon,) = (row for row in rows if row["kind"] == "cordon")
    assert (cordon["verify"], cordon["timeout_seconds"], cordon["undo"]) == ("cordoned", 120.0, "uncordon")
    assert {row["status"] for row in rows} <= {"proposed", "refused", "waiting_approval"}
    for row in rows:
        assert {"hold", "cooldown", "node_breaker", "service_minimum", "headroom", "autonomy"} <= set(verdicts(row))
        keys = {"name", "verdict", "reason", "detail", "compared", "facts"}
        assert all(set(guard) == keys for guard in row["guards"])
        (rate,) = (guard for guard in row["guards"] if guard["name"] == "rate_limit")
        assert rate["facts"] == [{"text": "guards.rate_limit", "used": rate["facts"][0]["used"], "most": "20"}]
        (request,) = row["requests"]
        assert (request["method"], request["url"]) == ("POST", "http://127.0.0.1:9/control/actions")
        assert request["body"]["kind"] == row["kind"]
    assert answer("remediate", "list", "-o", "json", cwd=folder) == before


def test_without_a_fault_the_steps_of_open_incidents_show_their_recorded_actions(folder):
    rows = answer("remediate", "plan", "-o", "json", cwd=folder)
    by_kind = {row["kind"]: row for row in rows}
    recorded = {row["id"]: row["status"] for row in answer("remediate", "list", "-o", "json", cwd=folder)}
    assert by_kind["drain"]["status"] == "waiting_approval"
    assert recorded[by_kind["drain"]["id"]] == "waiting_approval"
    assert verdicts(by_kind["drain"])["approval"] == "ask"
    assert by_kind["drain"]["held"] is None, "it waits for a person"
    assert (by_kind["reboot_node"]["missing"], by_kind["reboot_node"]["held"]) == ("drained", "precondition_not_met")
    chinese = answer("remediate", "plan", "-o", "json", "--lang", "zh", cwd=folder)
    assert any("置信度" in guard["compared"] for row in chinese for guard in row["guards"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--fault", "gpu-losst", "--entity", "x"), 'did you mean "gpu-lost"'),
        (("--fault", "gpu-lost", "--entity", "nowhere"), "no entity is named 'nowhere'"),
        (("--fault", "clock-skew", "--entity", "x"), "clock-skew has no automatic remedy"),
        (("--fault", "gpu-lost"), "--fault and --entity belong together"),
    ],
)
def test_bad_options_are_refused_with_a_hint(folder, arguments, message):
    done = run("remediate", "plan", *arguments, cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr


def test_an_empty_store_is_refused_with_a_hint(tmp_path):
    done = run("remediate", "plan", cwd=tmp_path)
    assert done.returncode == 2
    assert "the store has no cycle yet" in done.stderr


SURGE = ("remediate", "plan", "--fault", "traffic-surge", "--entity", "chat")


def test_the_plan_of_a_surge_shows_the_degrade_ladder(folder):
    rows = answer(*SURGE, "-o", "json", cwd=folder)
    assert [row["ladder"] for row in rows if row["kind"] == "scale"] == [None]
    (level,) = (row for row in rows if row["kind"] == "degrade_service")
    assert (level["ladder"]["level"], level["ladder"]["name"]) == (0, "normal")
    following = level["ladder"]["next"]
    assert (following["name"], following["enter_for_seconds"]) == ("cap_output", 15.0)
    assert following["thresholds"] == [{"indicator": "wait_ratio", "limit": 2.0, "value": None, "reached": False}]
    assert following["obstacles"] == ["no_values"], "the stored values are a minute apart"
    assert {"hold", "trusted_values", "autonomy"} <= set(verdicts(level))
    (request,) = level["requests"]
    assert request["body"]["params"]["max_output_tokens"] == 192
    assert (level["decision"], level["held"]) == ("allowed", "not_due_yet")
    shown = run(*SURGE, "-o", "table", cwd=folder).stdout
    headline = next(line.split() for line in shown.splitlines() if line.startswith("degrade_service"))
    assert headline[2:4] == ["held", "not_due_yet"], "the headline agrees with the thresholds below it"
    assert "present degrade level: 0 (normal)" in shown
    assert "next level: 4 (output capped), once all of these are reached for 15s" in shown
    assert "not reached: expected wait over the TTFT objective is -, limit 2" in shown
