"""The safety rules that concern alerts; each test bears the number of its rule."""

import re
from dataclasses import replace

import pytest

from alerts.routing.pipeline import messages
from alerts.routing.routes import NotificationSettings
from alerts.rules.files import load_rules
from alerts.state.machine import advance
from alerts.state.silence import mute
from outrider.model import (
    AlertReason,
    AlertState,
    EntityKind,
    EntityRef,
    MuteReason,
    NotifyReason,
    NoVerdict,
    NoVerdictReason,
    Priority,
)

MESSAGING = NotificationSettings(routes={"phone": ("hook",), "im": ("im",), "mail": ("mail",)})
RULES = load_rules()


def rule(name):
    return next(rule for rule in RULES if rule.name == name)


@pytest.mark.parametrize("reason", list(NoVerdictReason))
def test_rule_1_a_metrics_outage_resolves_no_alert(world, reason):
    alerts = advance([], [world.finding("engine-hung")], None, RULES, world.context(), world.at(0))
    for seconds in (15, 60, 3600, 86400):
        no_verdict = [NoVerdict("liveness", world.replica, reason)]
        alerts = advance(alerts, no_verdict, None, RULES, world.context(), world.at(seconds))
        assert [(a.state, a.reason) for a in alerts] == [(AlertState.FIRING, AlertReason.KEPT_WITHOUT_VALUES)]


def test_rule_1_a_metrics_outage_fires_nothing_that_was_pending(world):
    full = world.finding("kv-pressure", detector="rule:kv-cache-full")
    alerts = advance([], [full], None, RULES, world.context(), world.at(0))
    no_verdict = [NoVerdict("rule:kv-cache-full", None, NoVerdictReason.NO_VALUES)]
    for seconds in range(15, 1200, 15):
        alerts = advance(alerts, no_verdict, None, RULES, world.context(), world.at(seconds))
        assert [a.state for a in alerts] == [AlertState.PENDING]


def test_rule_10_a_full_cache_leads_to_scaling_and_no_rule_restarts_by_itself():
    assert [str(kind) for kind in rule("kv-cache-full").then] == ["scale", "capacity_plan"]
    assert not [name.name for name in RULES if {"restart_pod", "drain"} & {str(kind) for kind in name.then}]


def test_rule_11_a_resolved_incident_takes_no_new_alerts(world):
    """An alert that comes back is a new episode that belongs to no incident yet."""
    first = advance([], [world.finding("engine-dead")], None, RULES, world.context(), world.at(0))
    first = tuple(replace(alert, incident="inc-1") for alert in first)
    gone = advance(first, [], None, RULES, world.context(), world.at(15))
    gone = advance(gone, [], None, RULES, world.context(), world.at(60))
    assert gone[0].state is AlertState.RESOLVED
    active = [alert for alert in gone if alert.state is not AlertState.RESOLVED]
    (again,) = advance(active, [world.finding("engine-dead")], None, RULES, world.context(), world.at(75))
    assert (again.incident, again.starts_at) == (None, world.at(75))


def test_rule_11_a_resolved_incident_sends_no_message(world):
    alert = world.alert()
    result = messages([], [world.incident(alert)], [alert], [], MESSAGING, world.t0)
    over = replace(result.incidents[0], resolved_at=world.at(60))
    ended = messages(result.incidents, [over], [], [], MESSAGING, world.at(60))
    assert {m.reason for m in ended.messages} == {NotifyReason.RESOLVED}
    raised = [replace(ended.incidents[0], priority=Priority.P0)]
    assert messages(ended.incidents, raised, [alert], [], MESSAGING, world.at(75)).messages == ()


def test_rule_11_two_engines_send_one_message(world):
    """Both plan from the same state at slightly different instants; the outbox keeps one row an id."""
    alert = world.alert()
    outbox = {}
    for second in (0, 4):
        for message in messages([], [world.incident(alert)], [alert], [], MESSAGING, world.at(second)).messages:
            outbox.setdefault(message.id, message)
    assert [message.channel for message in outbox.values()] == ["im"]


@pytest.mark.parametrize("acknowledged", [False, True])
def test_rule_11_a_higher_priority_always_breaks_through_folding(world, acknowledged):
    cause = world.alert(priority=Priority.P1)
    result = messages([], [world.incident(cause)], [cause], [], MESSAGING, world.t0)
    worse = world.alert("availability-low", world.service, priority=Priority.P0, fault=None)
    incident = replace(
        result.incidents[0],
        priority=Priority.P0,
        alerts=(cause.fingerprint, worse.fingerprint),
        acknowledged_at=world.at(5) if acknowledged else None,
    )
    alerts = mute([cause, worse], [incident], [])
    assert alerts[1].muted_by is MuteReason.FOLDED
    raised = messages(result.incidents, [incident], alerts, [], MESSAGING, world.at(15))
    assert {(m.reason, m.priority) for m in raised.messages} == {(NotifyReason.PRIORITY_RAISED, Priority.P0)}
    assert "hook" in {m.channel for m in raised.messages}
    assert raised.incidents[0].pages == 1, "the incident had its page"
    assert messages([incident], raised.incidents, alerts, [], MESSAGING, world.at(30)).messages == ()


def test_rule_11_a_p2_that_becomes_a_p0_is_a_page(world):
    alert = world.alert(priority=Priority.P2)
    result = messages([], [world.incident(alert, priority=Priority.P2)], [alert], [], MESSAGING, world.t0)
    assert result.incidents[0].pages == 0
    worse = replace(result.incidents[0], priority=Priority.P0)
    raised = messages(result.incidents, [worse], [replace(alert, priority=Priority.P0)], [], MESSAGING, world.at(15))
    assert raised.incidents[0].pages == 1
    assert all(message.is_page for message in raised.messages)


def test_rule_11_a_silence_of_one_rule_does_not_hide_another(world):
    from outrider.ports import Silence

    silent = Silence("s", "engine-dead", None, world.at(9999), "li")
    cause, worse = world.alert(), world.alert("availability-low", world.service, priority=Priority.P0, fault=None)
    incident = world.incident(cause, worse, priority=Priority.P0)
    alerts = mute([cause, worse], [incident], [silent])
    assert [alert.muted_by for alert in alerts] == [MuteReason.SILENCED, None]
    assert messages([], [incident], alerts, [], MESSAGING, world.t0).messages


def test_rule_13_one_error_at_five_requests_an_hour_does_not_page():
    expr = rule("availability-low").expr

    # Evaluated as Python, with the same sums in place of the calls over both spans: the guard is in the rule itself.
    def holds(failed, total):
        sums = {"svc_failed_total": failed, "svc_requests_total": total}
        return bool(eval(re.sub(r'sum\((\w+), "\w+"\)', lambda call: str(sums[call[1]]), expr), {"__builtins__": {}}))

    assert not holds(1, 1)
    assert not holds(1, 5)
    assert not holds(4, 19)
    assert not holds(5, 1000)
    assert holds(5, 20)
    assert holds(20, 1000)


def test_rule_13_an_sli_that_matches_nothing_alarms():
    silent = rule("sli-without-values")
    assert "not present(svc_requests_total)" in silent.expr
    assert silent.priority is Priority.P2


def test_rule_14_a_blind_monitor_is_a_p0(world):
    cluster = EntityRef("c1", EntityKind.CLUSTER, None, "c1")
    blind = world.finding("monitor-blind", cluster, detector="targets", severity=Priority.P0)
    (alert,) = advance([], [blind], None, RULES, world.context(), world.t0)
    assert (alert.priority, alert.state) == (Priority.P0, AlertState.FIRING), "at once, whatever the SLO says"
    incident = world.incident(alert, priority=Priority.P0, cause=("monitor-blind", cluster))
    result = messages([], [incident], [alert], [], MESSAGING, world.t0)
    assert "hook" in {message.channel for message in result.messages}
    assert result.incidents[0].pages == 1
