"""An alert that fires too often is held as one; a higher priority breaks through."""

from __future__ import annotations

from datetime import timedelta

from alerts.routing.pipeline import NotificationSettings, messages
from alerts.state.flapping import damp
from alerts.state.machine import advance, evidence_of
from detectors.rca import correlate
from detectors.rca.fault_catalogue import load
from outrider.model import AlertReason, AlertState, EntityKind, NotifyReason, Priority
from outrider.text.i18n import translate
from outrider.topology import Topology
from outrider.vocabulary.rules import Rule

FLAKY = Rule("flaky", EntityKind.REPLICA, detectors=("liveness",), clear=timedelta(seconds=30))
STEP = 15


class Run:
    """The state machine with damping, one cycle after another."""

    def __init__(self, world, most=3) -> None:
        self.world, self.most = world, most
        self.active, self.memory, self.seconds = (), {}, 0
        self.history = []

    def step(self, *, bad, severity=Priority.P2, count=1):
        for _ in range(count):
            self.seconds += STEP
            now = self.world.at(self.seconds)
            found = [self.world.finding(detector="liveness", severity=severity)] if bad else []
            after = advance(self.active, found, None, (FLAKY,), self.world.context(), now)
            alerts, self.memory = damp(self.active, after, self.memory, self.most, now)
            self.active = tuple(alert for alert in alerts if alert.state is not AlertState.RESOLVED)
            self.history.append(alerts)
        return self.history[-1]

    def flap(self, times):
        for _ in range(times):
            self.step(bad=True, count=2)
            self.step(bad=False, count=4)


def test_it_resolves_normally_up_to_the_limit_and_is_held_beyond_it(world):
    run = Run(world)
    run.flap(3)
    assert run.active == ()
    run.flap(1)
    (held,) = run.active
    assert (held.state, held.reason, held.ends_at) == (AlertState.FIRING, AlertReason.FLAPPING, None)
    assert held.annotations["flapping"] == "4"
    line = evidence_of(held)[0]
    assert translate(line.text, "en", **line.arguments) == "fired 4 times in the last hour, held as one alert"


def test_a_held_alert_is_one_episode_and_counts_on(world):
    run = Run(world)
    run.flap(8)
    (held,) = run.active
    assert held.annotations["flapping"] == "8"
    starts = {alert.starts_at for alerts in run.history for alert in alerts if alert.annotations.get("flapping")}
    assert len(starts) == 1
    assert [line.text for line in evidence_of(held)].count("alerts.evidence.flapping") == 1


def test_it_ends_once_it_has_been_quiet_for_long_enough(world):
    run = Run(world)
    run.flap(4)
    assert run.active
    run.step(bad=False, count=4 * 60)
    assert run.active == ()
    (ended,) = [alert for alerts in run.history for alert in alerts if alert.state is AlertState.RESOLVED][-1:]
    assert ended.reason is AlertReason.CONDITION_GONE


def test_a_steady_alert_never_flaps(world):
    run = Run(world, most=1)
    run.step(bad=True, count=300)
    (alert,) = run.active
    assert "flapping" not in alert.annotations


def test_damping_can_be_disabled(world):
    run = Run(world, most=0)
    run.flap(10)
    assert run.active == ()


def test_a_held_alert_is_still_held_after_a_restart(world):
    run = Run(world)
    run.flap(5)
    run.memory = {}
    run.step(bad=False)
    assert run.active[0].reason is AlertReason.FLAPPING


def test_a_higher_priority_breaks_through_while_it_is_held(world):
    run = Run(world)
    run.flap(5)
    run.step(bad=True, severity=Priority.P0)
    assert run.active[0].priority is Priority.P0


def test_a_flapping_alert_pages_once_and_its_higher_priority_again(world):
    run, topology, knowledge = Run(world, most=1), Topology.build([(world.replica, world.service)]), load()
    routes = NotificationSettings(routes={"im": ("chat",), "phone": ("call",)})
    incidents, sent = (), []

    def cycle(**condition):
        nonlocal incidents
        alerts = run.step(**condition)
        now = world.at(run.seconds)
        changed = correlate.correlate(incidents, alerts, (), (), topology, knowledge, now, timedelta(seconds=STEP))
        after = tuple({item.id: item for item in (*incidents, *changed)}.values())
        plan = messages(incidents, after, alerts, [], routes, now)
        sent.extend(message for message in plan.messages if message.channel == "chat")
        incidents = tuple(item for item in plan.incidents if item.resolved_at is None)

    def flap(times, **condition):
        for _ in range(times):
            for _ in range(2):
                cycle(bad=True, **condition)
            for _ in range(8):
                cycle(bad=False)

    flap(12, severity=Priority.P1)
    assert sum(message.is_page for message in sent) <= 2
    sent.clear()
    flap(1, severity=Priority.P0)
    assert sent[0].reason is NotifyReason.PRIORITY_RAISED
