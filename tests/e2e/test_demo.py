"""The demo over HTTP: causes, actions, approvals and refusals."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest

from outrider.clock import ManualClock
from outrider.model import EntityKind
from service.ops import demo
from simulator import story
from simulator.faults import inject
from simulator.fleet import Fleet
from simulator.spec.fleets import default_spec

pytestmark = pytest.mark.slow

SEED = 7
START = datetime(2026, 11, 18, 12, tzinfo=UTC)
SERVICES = {"chat-70b", "code-14b"}


def silent(stage, share):
    assert 0 <= share <= 1


# --- the first fault, with `outrider demo --headless` ------------------------------------------------


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    noon = mock.patch.object(demo, "SystemClock", return_value=ManualClock(START))  # the same load at any real time
    with contextlib.chdir(tmp_path_factory.mktemp("demo")), noon:
        return asyncio.run(demo.headless(minutes=7.5, seed=SEED, language="en", progress=silent))


@pytest.fixture(scope="module")
def truth():
    """Returns the lost GPU of the story, its replica and its node."""
    fleet = Fleet(default_spec(), seed=SEED, start=START)
    lost, _, _ = story.arrange(fleet, SEED)
    gpu = next(gpu for gpu in range(fleet.gpus.size) if fleet.gpu_uuid(gpu) == lost.entity.name)
    pod = fleet.pods.pods[int(fleet.pods.owner[gpu])]
    return lost.entity.name, pod.name, fleet.nodes.names[pod.node]


def performed(result):
    return {(act["kind"], act["target"]["name"]): act for act in result["actions"]}


def test_the_result_has_the_documented_keys(result):
    assert set(result) >= {
        "cycles", "targets", "signals_written", "alerts", "incidents", "forecasts", "recommendations", "actions",
    }  # fmt: skip
    assert result["cycles"] == 30
    assert result["targets"] >= 33, "16 engines, 8 nodes with two exporters each, one cluster; and scaled-out replicas"
    assert result["signals_written"] > 30 * 33
    for incident in result["incidents"]:
        assert set(incident) >= {
            "id", "layer", "priority", "opened_at", "resolved_at", "suspected_cause", "hypotheses", "rejected",
            "alerts", "pages", "summary",
        }  # fmt: skip
    for action in result["actions"]:
        assert set(action) >= {
            "id", "session", "kind", "target", "dry_run", "decision", "reason", "status", "started_at", "ended_at",
        }  # fmt: skip
    for recommendation in result["recommendations"]:
        assert set(recommendation) >= {
            "service", "gpu_type", "current_replicas", "target_replicas", "gpus", "floor", "ceiling", "binding",
            "needed_by", "lead_time_seconds", "cost_per_hour", "derivation", "reason",
        }  # fmt: skip


def test_the_lost_gpu_is_the_only_open_incident(result, truth):
    gpu, _, _ = truth
    (incident,) = result["incidents"]
    cause = incident["suspected_cause"]
    assert (cause["fault"], cause["entity"]["kind"], cause["entity"]["name"]) == ("gpu-lost", "gpu", gpu)
    assert cause["confidence"] > 0.5
    assert incident["hypotheses"][0] == cause
    assert incident["resolved_at"] is None
    assert incident["layer"] == "hardware"
    assert incident["pages"] == 1
    assert "chat-70b" in incident["services"]


def test_the_alert_of_its_dead_engine_is_grouped(result, truth):
    _, replica, _ = truth
    (incident,) = result["incidents"]
    fired = {(alert["rule"], alert["entity"]["name"]): alert for alert in result["alerts"]}
    assert ("engine-dead", replica) in fired
    assert {alert["incident"] for alert in result["alerts"]} == {incident["id"]}
    assert incident["alerts"] == len(result["alerts"]) >= 2


def test_traffic_is_shifted_the_node_cordoned_and_the_pod_restarted(result, truth):
    _, replica, node = truth
    acts = performed(result)
    for kind, target in (("shift_traffic", replica), ("cordon", node), ("restart_pod", replica)):
        action = acts[kind, target]
        assert (action["decision"], action["reason"], action["status"]) == ("allowed", "within_limits", "done")
        assert action["dry_run"] is False
        assert action["started_at"] <= action["ended_at"]
    assert acts["cordon", node]["started_at"] <= acts["restart_pod", replica]["started_at"], "not onto the same node"


def test_a_drain_waits_for_capacity_or_approval(result, truth):
    _, _, node = truth
    done = performed(result)
    drain = done["drain", node]
    if drain["reason"] == "no_headroom":  # every replica is needed: others start first
        assert done["scale", "chat-70b"]["status"] == "done"
        assert (drain["decision"], drain["status"]) == ("refused", "refused")
    else:
        assert (drain["decision"], drain["status"], drain["reason"]) == ("ask", "waiting_approval", "needs_approval")
    assert drain["started_at"] is None


def test_the_node_stays_cordoned_while_its_gpu_is_lost(result):
    assert "uncordon" not in {action["kind"] for action in result["actions"]}
    assert {action["kind"] for action in result["actions"]} <= {
        "shift_traffic", "cordon", "restart_pod", "drain", "restore_traffic", "scale",
    }  # fmt: skip


def test_there_is_a_forecast_and_a_plan_for_both_services(result):
    assert result["forecasts"] >= len(SERVICES)
    plans = {entry["service"]: entry for entry in result["recommendations"]}
    assert set(plans) == SERVICES
    for entry in plans.values():
        assert entry["floor"] <= entry["target_replicas"] <= entry["ceiling"]
        assert entry["gpus"] % entry["target_replicas"] == 0
        assert entry["reason"]


def test_hindsight_shows_the_peak_with_and_without_the_plan(result):
    climbs = {entry["service"]: entry for entry in result["looking_back"]}
    assert set(climbs) == SERVICES
    for climb in climbs.values():
        assert climb["first_start_at"] < climb["peak_at"], "before the peak of the day before the demo"
        assert climb["first_ready_at"] > climb["first_start_at"]
        assert climb["without_starts"]["waited"] > 0.05 * climb["requests"], "only the replicas of the night"
        assert climb["with_plan"]["waited"] <= 0.005 * climb["requests"]


# --- the other faults, each alone and without history ------------------------------------------------


async def run_fault(fault, entity, minutes):
    """Injects a fault after two minutes. Returns (truth, result, fleet)."""
    fleet = Fleet(default_spec(), seed=SEED, start=START)
    running = await demo.monitor(fleet)
    try:
        truth = inject(fleet, fault, entity, START + timedelta(minutes=2), timedelta(minutes=10), SEED)
        for _ in range(round(timedelta(minutes=minutes) / running.interval)):
            await running.step()
        return truth, demo.summary(running, "en"), fleet
    finally:
        await running.close()


def run_in(tmp_path, *arguments):
    with contextlib.chdir(tmp_path):
        return asyncio.run(run_fault(*arguments))


def instant(text):
    return datetime.fromisoformat(text)


def test_a_hung_engine_is_restarted_and_receives_traffic_again(tmp_path):
    truth, result, _ = run_in(tmp_path, "engine-hung", "code-14b-2", 10)
    (incident,) = result["incidents"]
    cause = incident["suspected_cause"]
    assert (cause["fault"], cause["entity"]["name"]) == ("engine-hung", "code-14b-2")
    assert truth.start < instant(incident["opened_at"]) <= truth.start + timedelta(minutes=2)
    assert incident["resolved_at"] is not None
    assert truth.entity.kind is EntityKind.REPLICA
    acts = performed(result)
    shares = [a["params"]["weight"] for a in result["actions"] if a["kind"] == "shift_traffic"]
    assert shares in ([0.0, 0.01, 0.1], [0.1, 0.01, 0.0]), "out of rotation, then back in steps"
    assert acts["restart_pod", "code-14b-2"]["status"] == "done"
    assert acts["restore_traffic", "code-14b-2"]["reason"] == "recovered"
    assert not {kind for kind, _ in acts} & {"cordon", "drain", "scale"}, "GPU and load are normal"


def test_a_traffic_surge_is_scaled_out_without_restarts(tmp_path):
    truth, result, fleet = run_in(tmp_path, "traffic-surge", "chat-70b", 7)
    (incident,) = result["incidents"]
    cause = incident["suspected_cause"]
    assert (cause["fault"], cause["entity"]["name"]) == ("traffic-surge", "chat-70b")
    assert truth.start < instant(incident["opened_at"]) <= truth.start + timedelta(minutes=2)
    done = {action["kind"]: action["decision"] for action in result["actions"] if action["status"] == "done"}
    assert done["scale"] == "allowed"
    assert {action["kind"] for action in result["actions"]} <= {"scale", "degrade_service", "restore_service"}
    replicas = [pod for pod in fleet.pods.of_service("chat-70b") if pod.exists]
    assert 10 < len(replicas) <= fleet.spec.service("chat-70b").ceiling
    waited = START + timedelta(minutes=7) - instant(incident["opened_at"])
    assert waited < timedelta(minutes=5)
    assert sum(fleet.bank.waiting[pod.slot] for pod in replicas) == 0, "nobody waits five minutes after the detection"


# --- practice with the limits of a file --------------------------------------------------------------

LIMITS = "remediation: {autonomy: approve, two_person: [restart_pod]}\n"
PRACTICE_FAULT = ("engine-hung", "code-14b-2")


async def practice(config):
    """While an engine hangs, a person stops everything, approves, and lowers the level. Returns what happened."""
    fleet = Fleet(default_spec(), seed=SEED, start=START)
    running = await demo.monitor(fleet, config=config)
    state, statuses, shown = running.platform.state, [], []
    running.on_limits = lambda: shown.append(running.platform.settings.remediation.autonomy)

    async def step(count):
        for _ in range(count):
            await running.step()
        newest = {action.kind.value: action for action in reversed(state.actions(limit=100))}
        statuses.append({kind: action.status.value for kind, action in newest.items()})
        return newest

    try:
        inject(fleet, *PRACTICE_FAULT, START + timedelta(minutes=1), timedelta(minutes=20), SEED)
        shift = (await step(14))["shift_traffic"]
        demo.KILL_SWITCH.touch()
        state.decide_action(shift.id, True, "ann", fleet.now)
        await step(1)
        demo.KILL_SWITCH.unlink()
        again = (await step(1))["shift_traffic"]
        if again.status.value == "waiting_approval":
            state.decide_action(again.id, True, "ann", fleet.now)
        restart = (await step(2))["restart_pod"]
        for person in ("ann", "bo"):
            state.decide_action(restart.id, True, person, fleet.now)
            statuses.append(state.action(restart.id).status.value)
        await step(1)
        config.write_text("remediation: {autonomy: observe}\n")
        await step(1)
        return statuses, shown, running.platform.cycle.parts.policy, demo.FOLDER.joinpath("demo.yaml").read_text()
    finally:
        await running.close()


def test_approvals_kill_switch_and_levels_can_be_practiced(tmp_path):
    config = tmp_path / "practice.yaml"
    config.write_text(LIMITS)
    with contextlib.chdir(tmp_path):
        statuses, shown, policy, document = asyncio.run(practice(config))
    waits, killed, _, two, first, second, done, _ = statuses
    assert waits["shift_traffic"] == "waiting_approval"
    assert killed["shift_traffic"] != "done", "the kill switch is on"
    assert (two["shift_traffic"], two["restart_pod"]) == ("done", "waiting_approval")
    assert (first, second) == ("waiting_approval", "intended"), "one of two approvals, then both"
    assert done["restart_pod"] == "done"
    assert (shown, policy.autonomy.general.value, policy.two_person) == (["observe"], "observe", frozenset())
    assert "autonomy: observe" in document
    assert "two_person" not in document
