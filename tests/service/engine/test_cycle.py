"""The whole cycle on a store in memory, with metrics pages of a small exporter."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from collectors.mapping.target import targets_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from outrider.clock import ManualClock
from outrider.errors import CollectError, CollectReason
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    AlertState,
    DecisionReason,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    NotifyReason,
    NoVerdictReason,
    Outcome,
    OutcomeStatus,
    Stage,
    StageReason,
    Verdict,
)
from outrider.ports import CycleCommit, Silence
from service.config.settings import Settings
from service.engine.fleet_state import UP
from service.wiring import platform
from store import factory
from store.admin import integrity

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
NAMES = ("a-0", "a-1", "a-2")


def page(tokens):
    labels = '{engine="0",model_name="m"}'
    lines = [
        f"vllm:num_requests_running{labels} 2.0",
        f"vllm:num_requests_waiting{labels} 0.0",
        f"vllm:kv_cache_usage_perc{labels} 0.3",
        f"vllm:generation_tokens_total{labels} {tokens}",
        f"vllm:iteration_tokens_total_count{labels} {tokens / 10}",
        f'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {tokens / 100}',
        f'http_requests_total{{handler="/v1/completions",method="POST",status="2xx"}} {tokens / 100}',
    ]
    return ("\n".join(lines) + "\n").encode()


class World:
    """Three replicas of one service; ``dead`` ones refuse connections."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.clock = ManualClock(START)
        self.targets = targets_of(
            "c",
            [
                {
                    "name": name, "adapter": "vllm", "url": f"http://127.0.0.1/{name}/metrics",
                    "entity": {"kind": "replica", "namespace": "s", "name": name},
                    "labels": {"node": f"node-{number}", "pod": name, "service": "a"},
                }
                for number, name in enumerate(NAMES)
            ],
        )  # fmt: skip
        self.collector = ScrapeManager(self.targets)
        self.cycle = platform.cycle_in_memory(settings or Settings(), self.collector, self.clock, interval=STEP)
        self.tokens = dict.fromkeys(NAMES, 1000.0)
        self.dead, self.down = set(), set()
        self.pending_events = ()

    @property
    def state(self):
        return self.cycle.parts.state

    def step(self, count=1):
        for _ in range(count):
            now = self.clock.advance(STEP)
            collected = self.collector.absorb([self.scrape(target, now) for target in self.targets], now)
            record = self.cycle.run_stages(now, replace(collected, events=self.pending_events))
            self.pending_events = ()
        return record

    def scrape(self, target, now):
        self.tokens[target.name] += 500.0
        if target.name in self.dead:
            error = CollectError(f"{target.name} refuses connections", reason=CollectReason.REFUSED)
            return Scrape(target, now, None, error, 0.001, None, None, probed=True)
        return Scrape(target, now, page(self.tokens[target.name]), None, 0.01, 200, 2.0, probed=True)


def test_a_quiet_service_raises_no_alert():
    world = World()
    record = world.step(20)
    assert (record.targets, record.targets_up, record.alerts_firing, record.incidents_open) == (3, 3, 0, 0)
    assert world.state.incidents() == ()


@pytest.mark.slow
def test_one_dead_engine_is_one_incident_that_resolves_when_it_is_back():
    world = World()
    world.step(10)
    world.dead.add("a-1")
    world.step(3)
    (incident,) = world.state.incidents(open_only=True)
    cause = incident.suspected_cause
    assert (cause.fault, cause.entity.name) == ("engine-dead", "a-1")
    assert incident.services == ("a",)
    firing = world.state.alerts(states=[AlertState.FIRING])
    assert {alert.incident for alert in firing} == {incident.id}
    world.dead.clear()
    world.step(30)
    assert world.state.incidents(open_only=True) == ()
    assert world.state.incident(incident.id).resolved_at is not None


@pytest.mark.slow
def test_an_incident_pages_once_however_long_it_lasts():
    world = World()
    world.step(10)
    world.dead.add("a-1")
    world.step(30)
    assert [incident.pages for incident in world.state.incidents()] == [1]
    assert sum(message.is_page for message in world.state.messages()) == 1


def test_every_decision_is_audited():
    world = World()
    world.step(10)
    world.dead.add("a-1")
    world.step(4)
    events = [record.event for record in world.state.audit()]
    assert "incident_opened" in events
    assert "action_decided" in events
    assert all(record.reason for record in world.state.audit())
    assert world.state.actions()
    assert all(action.reason for action in world.state.actions())


@pytest.mark.slow
def test_holds_and_muted_messages_are_audited_once():
    world = World()
    world.step(10)
    world.dead.add("a-1")
    world.step(4)
    (incident,) = world.state.incidents(open_only=True)
    records = [record for record in world.state.audit() if record.subject == incident.id]
    assert ("message_decided", "opened") in [(record.event, record.reason) for record in records]
    world.state.add_silence(Silence("s", None, incident.suspected_cause.entity, START + timedelta(days=1), "ann"))
    world.step(20)
    records = [(record.event, record.reason) for record in world.state.audit() if record.subject == incident.id]
    held = [reason for event, reason in records if event == "held"]
    assert held
    assert all(one != other for one, other in pairwise(held)), "an unchanged reason is written once"
    assert records.count(("message_decided", "muted")) <= 1
    muted = [record for record in world.state.audit() if record.event == "alert_muted"]
    assert {record.reason for record in muted} >= {"silenced"}
    assert all(record.detail["incident"] == incident.id for record in muted)
    world.state.remove_silence("s")
    world.step(2)
    assert "alert_unmuted" in [record.event for record in world.state.audit()]


def test_by_default_no_action_runs_without_approval():
    world = World()
    world.step(10)
    world.dead.add("a-1")
    world.step(10)
    actions = world.state.actions()
    assert actions
    assert {action.status for action in actions} <= {
        ActionStatus.WAITING_APPROVAL,
        ActionStatus.REFUSED,
        ActionStatus.CANCELLED,
    }
    assert all(action.dry_run for action in actions)


def test_a_clock_step_back_decides_nothing_and_is_audited():
    world = World()
    world.step(10)
    world.dead.add("a-1")
    world.clock.set(START - timedelta(hours=1))
    record = world.step()
    assert record.findings == 0
    assert world.state.incidents() == ()
    assert "clock_stepped_back" in [entry.event for entry in world.state.audit()]
    world.step(12)
    assert len(world.state.incidents()) == 1, "values from before the step must not hide a current fault"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request, tmp_path):
    return f"sqlite:///{tmp_path}/x.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.mark.slow
def test_a_clock_step_back_leaves_the_store_intact(store_url):
    """The clock steps back into compacted and rolled-up hours, and continues from there."""
    state_url, metrics_url = factory.urls_of(store_url)
    world = World()
    parts = world.cycle.parts
    parts.state, parts.metrics = factory.open_state(state_url), factory.open_metrics(metrics_url)
    world.step(10)
    hour_later = START + timedelta(hours=1)
    world.clock.set(hour_later)
    world.step(10)
    parts.metrics.maintain(hour_later + timedelta(hours=2))
    world.clock.set(START + timedelta(seconds=67))
    record = world.step()
    assert record.signals_written > 0
    assert "clock_stepped_back" in [entry.event for entry in parts.state.audit()]
    world.step(8)
    parts.metrics.maintain(hour_later + timedelta(hours=2))
    for first, last in ((START + STEP, START + timedelta(seconds=67) + 9 * STEP), (hour_later + STEP, None)):
        end = (last or hour_later + 10 * STEP) + timedelta(seconds=1)
        window = parts.metrics.read_windows(EntityKind.REPLICA, [UP], first, end, STEP)
        assert len(window.entities) == 3
        assert (window.values == 1.0).all()
    assert set(parts.metrics.condition().waiting) <= {"merge_10m", "merge_1h"}, "the day goes on"
    parts.state.close()
    parts.metrics.close()
    reports = integrity.check(store_url, deep=True, progress=lambda *_: None)
    assert [report.problems for report in reports] == [[], []]


def test_a_restart_by_the_platform_is_not_a_crash():
    world = World()
    world.step(10)
    target = world.targets[1].entity
    done = Action(
        id="act-1", session="s", kind=ActionKind.RESTART_POD, target=target, params={}, because="inc", dry_run=False,
        decision=Verdict.ALLOWED, reason=DecisionReason.WITHIN_LIMITS, status=ActionStatus.DONE,
        decided_at=world.clock.now(), started_at=world.clock.now(), ended_at=world.clock.now() + timedelta(seconds=1),
    )  # fmt: skip
    world.state.commit(CycleCommit(world.state.cycles(limit=1)[0], actions=(done,)))
    world.dead.add("a-1")
    world.step(8)
    assert world.state.incidents() == ()
    events = world.cycle.parts.metrics.events(START, world.clock.now())
    assert {(event.kind, event.code) for event in events} == {(EventKind.ACTION, "restart_pod")}


def test_a_deleted_pod_is_not_a_crash_of_its_replica():
    world = World()
    world.step(10)
    pod = EntityRef("c", EntityKind.POD, "s", "a-1")
    attributes = {"text": "Stopping container vllm"}
    world.pending_events = (
        Event("k", EventKind.KUBERNETES, pod, world.clock.now(), "kubernetes", "Killing", attributes, "k"),
    )
    world.dead.add("a-1")
    world.step(8)
    assert world.state.incidents() == ()
    received = world.cycle.parts.metrics.events(START, world.clock.now())
    assert {event.entity.kind for event in received} == {EntityKind.POD, EntityKind.REPLICA}


def test_a_restarted_platform_resumes():
    world = World()
    world.step(10)
    world.dead.add("a-1")
    world.step(3)
    (before,) = world.state.incidents(open_only=True)
    again = platform.cycle_in_memory(Settings(), world.collector, world.clock, interval=STEP)
    world.cycle.parts.detection.checkpoint(world.state, world.clock.now())
    again.parts.state = world.state
    again.parts.detection.restore(world.state)
    world.cycle = again
    world.step(3)
    assert [incident.id for incident in world.state.incidents(open_only=True)] == [before.id]
    assert sum(message.is_page for message in world.state.messages()) == 1


def test_a_topology_is_committed_when_it_changed_and_every_few_minutes():
    world = World()
    world.step(3)
    first = world.state.topology()
    world.step(10)
    assert world.state.topology() is first
    world.step(12)
    again = world.state.topology()
    assert again is not first
    assert again.shares_graph(first)
    world.collector.set_targets(world.targets[:2])
    world.targets = world.targets[:2]
    world.step()
    assert len(world.state.topology().of_kind(EntityKind.REPLICA)) == 2


def test_an_xid_from_two_sources_counts_once_and_two_from_one_source_count_twice():
    world = World()
    world.step(2)
    gpu = EntityRef("c", EntityKind.GPU, None, "GPU-a")

    def tell(source, number, **attributes):
        at = world.clock.now()
        world.pending_events = (
            Event(f"{source}{number}", EventKind.XID, gpu, at, source, "79", attributes, f"{source}{number}"),
        )
        world.step()

    def received():
        window = world.cycle.parts.detection.window(EntityKind.GPU, (), timedelta(minutes=10))
        return [(event.id, event.attributes.get("pid")) for event in window.events]

    tell("dcgm-node-0", 1)
    tell("kernel_log", 1, pid="7")
    assert received() == [("dcgm-node-01", "7")], "once, with what the log adds"
    tell("kernel_log", 2, pid="8")
    assert received() == [("dcgm-node-01", "7"), ("kernel_log2", "8")]
    stored = world.cycle.parts.metrics.events(START, world.clock.now() + STEP)
    assert [event.id for event in stored if event.kind is EventKind.XID] == ["dcgm-node-01", "kernel_log2"]


def test_an_empty_store_is_useful_within_ten_minutes():
    """Rules need no history: an engine that dies in the fifth minute is reported while statistical detectors learn."""
    world = World()
    world.step(20)
    world.dead.add("a-1")
    world.step(3)
    (incident,) = world.state.incidents(open_only=True)
    assert (incident.suspected_cause.fault, incident.opened_at - START) <= ("engine-dead", timedelta(minutes=10))
    statuses = {one.detector: one for one in world.state.detector_statuses()}
    learning = {name for name, one in statuses.items() if one.stage is not Stage.ALERTING}
    assert learning == {name for name, one in statuses.items() if one.needed_seconds is not None}
    assert {statuses[name].reason for name in ("liveness", "slowness", "neighbors", "rule:availability-low")} == {
        StageReason.NEEDS_NO_PAST
    }
    assert statuses["seasonal-replica"].reason is StageReason.TOO_LITTLE_PAST
    silent = statuses["seasonal-replica"].silent
    assert silent == {NoVerdictReason.WARMING_UP: 2, NoVerdictReason.NO_VALUES: 1}


def remediation(**section):
    return Settings.model_validate({"remediation": {"dry_run": False, **section}})


def finish_as(state, clock, status):
    """Ends everything that is intended, as a dispatcher would."""
    now = clock.now()
    for action in state.claim_actions("test", now, timedelta(seconds=60)):
        state.finish_action(Outcome(action.id, status, "the API server refused it", now, now))


def test_a_request_that_nobody_answers_expires_with_one_message_and_an_audit_record():
    world = World(remediation(approval_expires="1m"))
    world.step(10)
    world.dead.add("a-1")
    world.step(3)
    (request,) = world.state.actions(statuses=[ActionStatus.WAITING_APPROVAL])
    world.step(10)
    expired = world.state.action(request.id)
    assert (expired.status, expired.reason) == (ActionStatus.REFUSED, DecisionReason.EXPIRED)
    assert expired.ended_at - expired.decided_at == timedelta(minutes=1)
    sent = [message for message in world.state.messages() if message.reason is NotifyReason.APPROVAL_EXPIRED]
    assert [message.channel for message in sent if message.id.endswith(request.id)] == ["replay"]
    assert any(record.reason == "expired" for record in world.state.audit())
    assert world.state.request_action(request.id, "ann", world.clock.now())
    world.step(1)
    assert world.state.action(request.id).status is ActionStatus.WAITING_APPROVAL


@pytest.mark.slow
def test_the_breaker_opens_in_the_store_and_holds_actions_until_its_reset():
    limits = {"max_unsuccessful": 0, "max_unsuccessful_ratio": 0.0}
    world = World(remediation(autonomy="act", breaker=limits, cooldown="1s"))
    world.step(10)
    world.dead.add("a-1")
    world.step(3)
    finish_as(world.state, world.clock, OutcomeStatus.FAILED)
    world.step(1)
    opened = world.state.breaker()
    assert opened.is_open
    assert "breaker_opened" in {record.event for record in world.state.audit()}
    assert NotifyReason.BREAKER_OPENED in {message.reason for message in world.state.messages()}
    world.step(5)
    assert world.state.breaker() == opened, "it opens once"
    assert not world.state.claim_actions("test", world.clock.now(), timedelta(seconds=60))
    failed = world.state.actions(statuses=[ActionStatus.FAILED])[0]
    assert world.cycle.recheck(failed, world.clock.now()) is DecisionReason.BREAKER_OPEN
    assert world.state.reset_breaker("ann", world.clock.now())
    world.step(1)
    assert not world.state.breaker().is_open
    assert world.cycle.recheck(failed, failed.decided_at) is not DecisionReason.BREAKER_OPEN


def test_the_kill_switch_file_refuses_every_step(tmp_path):
    file = tmp_path / "stop"
    file.touch()
    world = World(remediation(autonomy="act", kill_switch_file=str(file)))
    world.step(10)
    world.dead.add("a-1")
    world.step(3)
    assert {action.reason for action in world.state.actions()} == {DecisionReason.KILL_SWITCH}
    file.unlink()
    world.step(1)
    assert [action.status for action in world.state.actions(statuses=[ActionStatus.INTENDED])]
