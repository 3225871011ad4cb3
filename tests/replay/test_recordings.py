"""Recordings of a real engine through full cycles: one incident with the right cause, or none."""

from datetime import timedelta
from pathlib import Path

import pytest

from outrider.clock import from_unix, parse_rfc3339
from service.config.settings import Settings
from service.ops import replay

RECORDINGS = Path(__file__).parents[1] / "recordings"
SCRAPE = timedelta(seconds=5)
PAGING = ("P0", "P1")


def run(name):
    path = RECORDINGS / name
    path = path if path.exists() else RECORDINGS / f"{name}.metrics.jsonl.gz"
    return replay.replay([path], adapter="vllm", emit=["alerts", "incidents"], settings=Settings(), language="en")


def named(result):
    return [(i["suspected_cause"]["fault"], i["suspected_cause"]["entity"]["name"]) for i in result["incidents"]]


@pytest.mark.slow
def test_a_killed_engine_is_dead_within_two_scrapes_and_resolves_after_its_restart():
    result = run("g_sigkill")
    assert named(result) == [("engine-dead", "g_sigkill")]
    incident = result["incidents"][0]
    killed, ready = from_unix(1795191693.81), from_unix(1795191764.916)
    assert killed < parse_rfc3339(incident["opened_at"]) <= killed + 2 * SCRAPE
    assert ready < parse_rfc3339(incident["resolved_at"]) <= ready + timedelta(minutes=1)
    assert "monitor-blind" not in {fault for fault, _ in named(result)}


@pytest.mark.slow
def test_a_hung_engine_is_named_within_six_scrapes_and_its_backlog_is_not_a_second_hang():
    result = run("i_hang")
    assert named(result) == [("engine-hung", "i_hang")]
    stopped = from_unix(1795230176.228)
    incident = result["incidents"][0]
    assert stopped < parse_rfc3339(incident["opened_at"]) <= stopped + 6 * SCRAPE
    assert incident["resolved_at"] is None, "the recording ends before its backlog has decayed"
    (hang,) = [alert for alert in result["alerts"] if alert["rule"] == "engine-hung"]
    assert hang["state"] == "resolved"


@pytest.mark.slow
def test_a_sleeping_engine_is_asleep_not_hung():
    assert named(run("l_sleep")) == [("engine-asleep", "l_sleep")]


@pytest.mark.slow
def test_the_hung_one_of_two_replicas_is_named():
    result = run("n_fleet_hang")
    assert named(result) == [("engine-hung", "replica-1")]
    stopped = from_unix(1795231388.317)
    assert stopped < parse_rfc3339(result["incidents"][0]["opened_at"]) <= stopped + 10 * SCRAPE


@pytest.mark.slow
def test_a_load_ramp_is_not_an_engine_fault():
    result = run("c_ramp")
    faults = {fault for fault, _ in named(result)}
    assert faults
    assert faults <= {"traffic-surge", "kv-pressure"}
    rules = {alert["rule"] for alert in result["alerts"]}
    assert not rules & {"engine-dead", "engine-hung", "engine-core-dead"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a_idle", "b_steady", "f_prefix"])
def test_recordings_without_faults_do_not_page(name):
    result = run(name)
    assert [incident for incident in result["incidents"] if incident["priority"] in PAGING] == []
    assert [alert for alert in result["alerts"] if alert["priority"] in PAGING] == []


@pytest.mark.slow
def test_every_alert_belongs_to_an_existing_incident():
    result = run("c_ramp")
    known = {incident["id"] for incident in result["incidents"]}
    assert {alert["incident"] for alert in result["alerts"]} <= known


@pytest.mark.slow
def test_what_is_not_emitted_is_empty():
    path = RECORDINGS / "a_idle.metrics.jsonl.gz"
    result = replay.replay([path], adapter="vllm", emit=["signals"], settings=Settings(), language="en")
    assert result["alerts"] == []
    assert result["incidents"] == []
    names = {row["signal"] for row in result["signals"]}
    assert {"engine_requests_running", "engine_up", "target_up"} <= names
    assert all(row["value"] is not None for row in result["signals"])


def test_a_real_h100_under_a_model_opens_only_the_incident_of_its_xid():
    """Idle, decode, a pause, prefill at the power limit, memory that grows for 75 s, and a kernel that faults."""
    result = run("h100_model")
    assert named(result) == [("gpu-xid-application", "GPU-11111111-2222-3333-4444-555555555555")]
    assert [(alert["rule"], alert["priority"]) for alert in result["alerts"]] == [("gpu-xid", "P3")]
    faulted = from_unix(1795670409.22)
    assert faulted < parse_rfc3339(result["incidents"][0]["opened_at"]) <= faulted + SCRAPE
