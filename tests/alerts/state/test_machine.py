from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alerts.rules.context import service_context
from alerts.state.machine import advance, evidence_of, fingerprint
from outrider.model import (
    AlertReason,
    AlertState,
    EntityKind,
    EntityRef,
    NoPlanReason,
    NoRecommendation,
    NoVerdict,
    NoVerdictReason,
    Plan,
    PlanReason,
    Priority,
    Recommendation,
)
from outrider.vocabulary.rules import AbsentPolicy, Rule

DEAD = Rule("engine-dead", EntityKind.REPLICA, faults=("engine-dead",), clear=timedelta(seconds=30), runbook="r.md")
SLOW = Rule(
    "slow",
    EntityKind.REPLICA,
    expr="last(engine_up) < 1",
    priority=Priority.P2,
    wait=timedelta(minutes=10),
    routes=("im",),
)
LOST = Rule("gpu-lost", EntityKind.GPU, faults=("gpu-lost",))
ODD = Rule("anomaly", EntityKind.REPLICA, detectors=("seasonal",), priority=Priority.P3)
GROWTH = Rule(
    "weekly-growth",
    EntityKind.SERVICE,
    detectors=("plan:weekly_growth_ratio",),
    threshold=0.2,
    priority=Priority.P3,
    routes=("report",),
)
RULES = (DEAD, SLOW, LOST, ODD, GROWTH)


def silent(detector, entity=None):
    return NoVerdict(detector, entity, NoVerdictReason.NO_VALUES)


def live(alerts):
    return [alert for alert in alerts if alert.state is not AlertState.RESOLVED]


def test_without_waiting_time_it_fires_at_once(world):
    (alert,) = advance([], [world.finding("engine-dead")], None, RULES, world.context(), world.t0)
    assert (alert.state, alert.reason) == (AlertState.FIRING, AlertReason.WAITING_TIME_OVER)
    assert (alert.rule, alert.entity, alert.fault) == ("engine-dead", world.replica, "engine-dead")
    assert (alert.starts_at, alert.seen_at) == (world.t0, world.t0)
    assert alert.annotations["runbook"] == "r.md"
    assert evidence_of(alert)[0].arguments == {"n": "3"}


def test_its_score_is_the_highest_of_its_findings(world):
    findings = [replace(world.finding("engine-dead"), score=score, fingerprint=str(score)) for score in (0.4, 0.75)]
    (alert,) = advance([], findings, None, RULES, world.context(), world.t0)
    assert alert.score == 0.75
    (weaker,) = advance([alert], findings[:1], None, RULES, world.context(), world.t0 + timedelta(seconds=15))
    assert weaker.score == 0.4


def test_pending_then_firing_then_resolved(world):
    seen = world.finding(detector="rule:slow")
    alerts = advance([], [seen], None, RULES, world.context(), world.at(0))
    assert [a.state for a in alerts] == [AlertState.PENDING]
    alerts = advance(alerts, [seen], None, RULES, world.context(), world.at(599))
    assert [(a.state, a.reason) for a in alerts] == [(AlertState.PENDING, AlertReason.STILL_TRUE)]
    alerts = advance(alerts, [seen], None, RULES, world.context(), world.at(600))
    assert [(a.state, a.reason) for a in alerts] == [(AlertState.FIRING, AlertReason.WAITING_TIME_OVER)]
    assert alerts[0].starts_at == world.t0, "since when it holds, not since when it fired"
    alerts = advance(alerts, [seen], None, RULES, world.context(), world.at(615))
    assert alerts[0].reason is AlertReason.STILL_TRUE
    alerts = advance(alerts, [], None, RULES, world.context(), world.at(630))
    assert [(a.state, a.reason) for a in alerts] == [(AlertState.RESOLVED, AlertReason.CONDITION_GONE)]
    assert alerts[0].ends_at == world.at(630)


def test_pending_that_goes_away_never_fired(world):
    alerts = advance([], [world.finding(detector="rule:slow")], None, RULES, world.context(), world.at(0))
    alerts = advance(alerts, [], None, RULES, world.context(), world.at(15))
    assert [(a.state, a.reason) for a in alerts] == [(AlertState.RESOLVED, AlertReason.NEVER_FIRED)]


def test_it_resolves_only_after_its_clear_time(world):
    alerts = advance([], [world.finding("engine-dead")], None, RULES, world.context(), world.at(0))
    alerts = advance(alerts, [], None, RULES, world.context(), world.at(15))
    assert [(a.state, a.reason) for a in alerts] == [(AlertState.FIRING, AlertReason.CONDITION_GONE)]
    alerts = advance(alerts, [world.finding("engine-dead")], None, RULES, world.context(), world.at(30))
    alerts = advance(alerts, [], None, RULES, world.context(), world.at(45))
    assert alerts[0].state is AlertState.FIRING, "the condition came back: the clear time starts anew"
    alerts = advance(alerts, [], None, RULES, world.context(), world.at(75))
    assert alerts[0].state is AlertState.RESOLVED


@pytest.mark.parametrize("about", ["entity", "everyone"])
def test_missing_data_never_resolves(world, about):
    alerts = advance([], [world.finding("engine-dead")], None, RULES, world.context(), world.at(0))
    no_verdict = silent("liveness", world.replica if about == "entity" else None)
    for seconds in range(15, 3600, 15):
        alerts = advance(alerts, [no_verdict], None, RULES, world.context(), world.at(seconds))
        assert [(a.state, a.reason) for a in alerts] == [(AlertState.FIRING, AlertReason.KEPT_WITHOUT_VALUES)]
    # the first healthy cycle after the gap starts the clear time, it does not end it
    alerts = advance(alerts, [], None, RULES, world.context(), world.at(3600))
    assert alerts[0].state is AlertState.FIRING
    alerts = advance(alerts, [], None, RULES, world.context(), world.at(3630))
    assert alerts[0].state is AlertState.RESOLVED


def test_a_rule_may_end_its_alert_after_a_time_without_values(world):
    rule = replace(DEAD, absent=AbsentPolicy.RESOLVE, resolve_after=timedelta(minutes=10))
    no_verdict = silent("liveness", world.replica)
    alerts = advance([], [world.finding("engine-dead")], None, (rule,), world.context(), world.at(0))
    alerts = advance(alerts, [no_verdict], None, (rule,), world.context(), world.at(60))
    alerts = advance(alerts, [world.finding("engine-dead")], None, (rule,), world.context(), world.at(600))
    for seconds in range(615, 1215, 15):  # the time begins again with each gap
        alerts = advance(alerts, [no_verdict], None, (rule,), world.context(), world.at(seconds))
        assert [(a.state, a.reason) for a in alerts] == [(AlertState.FIRING, AlertReason.KEPT_WITHOUT_VALUES)]
    alerts = advance(alerts, [no_verdict], None, (rule,), world.context(), world.at(1215))
    assert [(a.state, a.reason, a.ends_at) for a in alerts] == [
        (AlertState.RESOLVED, AlertReason.ABSENT_TOO_LONG, world.at(1215))
    ]


def test_good_values_between_gaps_restart_the_time_without_values(world):
    rule = replace(DEAD, absent=AbsentPolicy.RESOLVE, resolve_after=timedelta(minutes=10), clear=timedelta(hours=1))
    no_verdict = silent("liveness", world.replica)
    alerts = advance([], [world.finding("engine-dead")], None, (rule,), world.context(), world.at(0))
    for seconds, verdicts in ((60, [no_verdict]), (630, []), (645, [no_verdict]), (1230, [no_verdict])):
        alerts = advance(alerts, verdicts, None, (rule,), world.context(), world.at(seconds))
        assert [a.state for a in alerts] == [AlertState.FIRING], seconds


def test_a_pending_alert_without_values_never_fired(world):
    rule = replace(SLOW, absent=AbsentPolicy.RESOLVE, resolve_after=timedelta(seconds=30))
    alerts = advance([], [world.finding(detector="rule:slow")], None, (rule,), world.context(), world.at(0))
    for seconds in (15, 45):
        alerts = advance(alerts, [silent("rule:slow")], None, (rule,), world.context(), world.at(seconds))
    assert [(a.state, a.reason) for a in alerts] == [(AlertState.RESOLVED, AlertReason.NEVER_FIRED)]


def test_a_no_verdict_of_another_detector_or_entity_keeps_no_alert(world):
    alerts = advance(
        [], [world.finding("engine-dead")], None, (replace(DEAD, clear=timedelta(0)),), world.context(), world.at(0)
    )
    others = [silent("seasonal", world.replica), silent("liveness", world.node)]
    after = advance(alerts, others, None, (replace(DEAD, clear=timedelta(0)),), world.context(), world.at(15))
    assert after[0].state is AlertState.RESOLVED


def test_unobserved_time_does_not_count_as_waiting_time(world):
    seen = world.finding(detector="rule:slow")
    alerts = advance([], [seen], None, RULES, world.context(), world.at(0))
    alerts = advance(alerts, [silent("rule:slow")], None, RULES, world.context(), world.at(15))
    assert alerts[0].state is AlertState.PENDING
    alerts = advance(alerts, [seen], None, RULES, world.context(), world.at(900))
    assert (alerts[0].state, alerts[0].starts_at) == (AlertState.PENDING, world.at(900))


def test_a_returning_alert_is_a_new_episode(world):
    first = advance([], [world.finding("engine-dead")], None, RULES, world.context(), world.at(0))
    gone = advance(first, [], None, RULES, world.context(), world.at(15))
    gone = advance(gone, [], None, RULES, world.context(), world.at(60))
    assert gone[0].state is AlertState.RESOLVED
    again = advance(gone, [world.finding("engine-dead")], None, RULES, world.context(), world.at(90))
    assert len(again) == 1
    assert (again[0].starts_at, again[0].ends_at) == (world.at(90), None)
    assert again[0].fingerprint == first[0].fingerprint
    assert again[0].incident is None


def test_priority_of_the_pair_rises_and_never_falls_while_firing(world):
    seen = world.finding("gpu-lost", world.gpu, detector="gpu-faults")
    alerts = advance([], [seen], None, RULES, world.context(), world.at(0))
    assert alerts[0].priority is Priority.P1
    alerts = advance(alerts, [seen], None, RULES, world.context(unredundant=[world.service]), world.at(15))
    assert alerts[0].priority is Priority.P0
    alerts = advance(alerts, [seen], None, RULES, world.context(), world.at(30))
    assert alerts[0].priority is Priority.P0
    assert advance([], [seen], None, RULES, world.context(burning=[world.service]), world.t0)[0].priority is Priority.P0


def test_a_kept_alert_escalates_when_its_service_burns(world):
    seen = world.finding("gpu-lost", world.gpu, detector="gpu-faults")
    alerts = advance([], [seen], None, RULES, world.context(), world.at(0))
    no_verdict = [silent("gpu-faults", world.gpu)]
    alerts = advance(alerts, no_verdict, None, RULES, world.context(burning=[world.service]), world.at(15))
    assert alerts[0].priority is Priority.P0


def test_several_findings_of_one_rule_and_entity_merge_to_the_worst(world):
    findings = [
        world.finding("engine-dead", score=0.6, observed=2.0),
        world.finding("engine-dead", detector="probe", score=0.95, observed=7.0),
    ]
    (alert,) = advance([], findings, None, RULES, world.context(), world.t0)
    assert alert.value == 7.0
    assert alert.labels["detectors"] == "liveness,probe"
    assert len(evidence_of(alert)) == 2
    # either of the two falling silent keeps it
    (kept,) = advance([alert], [silent("probe")], None, RULES, world.context(), world.at(15))
    assert kept.reason is AlertReason.KEPT_WITHOUT_VALUES


def test_a_statistical_finding_never_matches_a_hard_rule(world):
    named = world.finding("engine-dead", detector="seasonal", severity=Priority.P0)
    (alert,) = advance([], [named], None, RULES, world.context(burning=[world.service]), world.t0)
    assert (alert.rule, alert.priority) == ("anomaly", Priority.P3)


def test_a_compiled_rule_matches_itself_only(world):
    named = world.finding("engine-dead", detector="rule:slow")
    assert [alert.rule for alert in advance([], [named], None, RULES, world.context(), world.t0)] == ["slow"]


def test_a_finding_without_a_matching_rule_gives_no_alert(world):
    assert advance([], [world.finding("disk-full")], None, RULES, world.context(), world.t0) == ()


def test_a_rule_that_was_removed_resolves_its_alert(world):
    alerts = advance([], [world.finding("engine-dead")], None, RULES, world.context(), world.at(0))
    no_verdict = [silent("liveness")]
    assert advance(alerts, no_verdict, None, (SLOW,), world.context(), world.at(15))[0].state is AlertState.RESOLVED


def test_nan_does_not_get_into_an_alert(world):
    (alert,) = advance(
        [], [world.finding("engine-dead", observed=float("nan"))], None, RULES, world.context(), world.t0
    )
    assert alert.value is None
    assert "NaN" not in alert.annotations["evidence"]


def plan(world, growth):
    if growth is None:
        entry = NoRecommendation(world.service, NoPlanReason.NO_HISTORY, world.t0)
    else:
        derivation = {} if growth == "missing" else {"weekly_growth_ratio": growth}
        entry = Recommendation(
            world.service, "H100", 4, 5, 20, 1, 9, "peak", None, None, timedelta(minutes=5), None, "USD", derivation,
            PlanReason.FORECAST_PEAK, world.t0,
        )  # fmt: skip
    return Plan(recommendations=(entry,))


def test_growth_of_next_week_comes_from_the_plan(world):
    assert advance([], [], plan(world, 0.19), RULES, world.context(), world.t0) == ()
    (alert,) = advance([], [], plan(world, 0.2), RULES, world.context(), world.t0)
    assert (alert.rule, alert.priority, alert.state) == ("weekly-growth", Priority.P3, AlertState.FIRING)
    assert alert.value == 0.2
    assert evidence_of(alert)[0].arguments["value"] == "+20 %"
    assert advance([alert], [], None, RULES, world.context(), world.at(15)) == (alert,), "no new plan changes nothing"
    for empty in (plan(world, None), plan(world, "missing")):
        (kept,) = advance([alert], [], empty, RULES, world.context(), world.at(30))
        assert (kept.state, kept.reason) == (AlertState.FIRING, AlertReason.KEPT_WITHOUT_VALUES)
    (over,) = advance([alert], [], plan(world, 0.05), RULES, world.context(), world.at(45))
    assert over.state is AlertState.RESOLVED


def test_service_context(world):
    label = {"service_level": "true"}
    firing = world.alert("availability-low", world.service, priority=Priority.P0, fault=None, labels=label)
    other = EntityRef("c1", EntityKind.SERVICE, "llm", "code")
    pending = world.alert("ttft", other, fault=None, labels=label, state=AlertState.PENDING)
    context = service_context(
        [firing, pending, world.alert()], {world.service: 3, other: 1}, {world.service: 4}, lambda _: ()
    )
    assert context.burning == {world.service}
    assert context.unredundant == {world.service, other}, "3 of 4 needed, and 1 of at least 2"
    assert service_context([], {world.service: 2}, {}, lambda _: ()).unredundant == frozenset()
    assert service_context([], {}, {world.service: 4}, lambda _: ()).unredundant == frozenset()


def test_fingerprints_are_stable_and_differ(world):
    assert fingerprint("a", world.gpu) == fingerprint("a", world.gpu)
    assert len({fingerprint(rule, entity) for rule in "ab" for entity in (world.gpu, world.node)}) == 4


STEPS = st.lists(st.sampled_from(["seen", "gone", "silent"]), min_size=1, max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, wait=st.integers(0, 4), clear=st.integers(0, 4))
def test_invariants_of_the_state_machine(world, steps, wait, clear):
    """Legal transitions only; nothing resolves or starts to fire without values; priority never falls."""
    unit = timedelta(seconds=15)
    rule = replace(DEAD, wait=wait * unit, clear=clear * unit)
    alerts = ()
    for index, step in enumerate(steps):
        now = world.at(15 * index)
        verdicts = {"seen": [world.finding("engine-dead")], "gone": [], "silent": [silent("liveness")]}[step]
        urgent = [world.service] if index % 3 == 1 else []
        before = {alert.fingerprint: alert for alert in live(alerts)}
        alerts = advance(alerts, verdicts, None, (rule,), world.context(burning=urgent), now)
        assert len({alert.fingerprint for alert in alerts}) == len(alerts)
        for alert in alerts:
            old = before.get(alert.fingerprint)
            if step == "silent":
                assert old is not None
                assert alert.state is old.state
            if step == "seen":
                assert alert.state is not AlertState.RESOLVED
            if old is not None and old.state is AlertState.FIRING:
                assert alert.state in (AlertState.FIRING, AlertState.RESOLVED)
                assert alert.priority.rank <= old.priority.rank
            if alert.state is AlertState.FIRING and (old is None or old.state is AlertState.PENDING):
                assert now - alert.starts_at >= rule.wait
            assert (alert.ends_at is not None) == (alert.state is AlertState.RESOLVED)


def test_an_alert_of_a_deleted_entity_resolves_at_once_whatever_its_last_values_say(world):
    dead = world.finding("engine-dead")
    alerts = advance([], [dead], None, RULES, world.context(), world.at(0))
    (alert,) = advance(alerts, [dead], None, RULES, world.context(), world.at(15), {world.replica})
    assert (alert.state, alert.reason, alert.ends_at) == (
        AlertState.RESOLVED,
        AlertReason.ENTITY_DELETED,
        world.at(15),
    )
    assert advance([], [dead], None, RULES, world.context(), world.at(30), {world.replica}) == ()
    silence = [silent(dead.detector, world.replica)]
    (kept,) = advance(alerts, silence, None, RULES, world.context(), world.at(15))
    assert kept.state is AlertState.FIRING, "missing values alone resolve nothing"
