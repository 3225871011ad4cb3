"""Triggers of an immediate plan, on values alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.model import EntityKind, EntityRef
from planner.capacity.present import PresentLoad
from service.planning.replan import LoadIncident, PlannedService, ReplanReason, ServiceNow, Situation, triggers

NOW = datetime(2026, 11, 18, 17, tzinfo=UTC)
CHAT, CODE = (EntityRef("c", EntityKind.SERVICE, "prod", name) for name in ("chat", "code"))
CALM = PresentLoad(rate=50.0, arrivals=50.0, calm=50.0, running=300.0, waiting=0.0, spread=0.0)
SEEN = ServiceNow(10, 10, CALM)
PLANNED = PlannedService(SEEN, upper=60.0, per_replica=8.0, wait_seconds=2.0)


def situation(state=SEEN, *, at=NOW, **more):
    return Situation(at, {CHAT: state}, **more)


def reasons(state=SEEN, planned=PLANNED, before=None, **more):
    earlier = situation(at=NOW - timedelta(seconds=15)) if before is None else before
    return triggers({CHAT: planned}, earlier, situation(state, **more)).get(CHAT, ())


def present(**changes):
    return replace(SEEN, present=replace(CALM, **changes))


def test_a_calm_service_keeps_its_plan():
    assert reasons() == ()
    assert reasons(present(arrivals=54.0, rate=54.0)) == ()


def test_a_load_incident_triggers_once_and_again_if_it_worsens_or_is_over():
    first = situation(incidents={"i": LoadIncident(1, frozenset({CHAT}))})
    assert reasons(incidents=first.incidents) == (ReplanReason.INCIDENT,)
    assert reasons(incidents=first.incidents, before=first) == ()
    worse = {"i": LoadIncident(0, frozenset({CHAT}))}
    assert reasons(incidents=worse, before=first) == (ReplanReason.INCIDENT,)
    assert reasons(before=first) == (ReplanReason.RECOVERED,)


def test_an_incident_that_reaches_another_service_triggers_that_service_alone():
    both = {CHAT: SEEN, CODE: SEEN}
    before = Situation(NOW, both, {"i": LoadIncident(1, frozenset({CHAT}))})
    now = Situation(NOW + timedelta(seconds=15), both, {"i": LoadIncident(1, frozenset({CHAT, CODE}))})
    assert triggers({CHAT: PLANNED, CODE: PLANNED}, before, now) == {CODE: (ReplanReason.INCIDENT,)}


def test_a_lost_replica_triggers_and_a_started_one_if_it_was_awaited():
    assert reasons(replace(SEEN, ready=9)) == (ReplanReason.REPLICAS_LOST,)
    waiting = replace(PLANNED, seen=ServiceNow(12, 10, CALM))
    assert reasons(ServiceNow(12, 11, CALM), waiting) == (ReplanReason.REPLICAS_READY,)
    assert reasons(ServiceNow(12, 12, CALM)) == (), "more than the plan waited for"


def test_an_action_that_ended_triggers_once():
    ended = {"act-1": frozenset({CHAT})}
    assert reasons(ended=ended) == (ReplanReason.ACTION_ENDED,)
    assert reasons(ended=ended, before=situation(ended=ended)) == ()
    assert triggers({CHAT: PLANNED}, None, situation(ended=ended)) == {}, "a restarted engine knows no new ones"


def test_a_load_above_the_forecast_triggers_and_again_only_when_it_changed():
    surge = present(arrivals=90.0, rate=80.0)
    assert reasons(surge) == (ReplanReason.LOAD_ABOVE_PLAN,)
    planned = replace(PLANNED, seen=surge)
    assert reasons(surge, planned) == ()
    assert reasons(present(arrivals=120.0, rate=80.0), planned) == (ReplanReason.LOAD_ABOVE_PLAN,)


@pytest.mark.parametrize(
    ("waiting", "spread", "expected"),
    [
        (100.0, 1.0, ()),  # served within the 2 s that the SLO allows
        (400.0, 1.0, (ReplanReason.QUEUE,)),
        (400.0, 0.1, ()),  # one engine's own queue
        (20.0, 1.0, ()),  # the batch being filled
    ],
)
def test_a_queue_triggers_if_the_slo_does_not_allow_its_wait(waiting, spread, expected):
    assert reasons(present(waiting=waiting, spread=spread)) == expected


def test_the_end_of_a_surge_triggers_a_plan_that_was_short():
    surge = present(arrivals=90.0, rate=80.0, waiting=900.0, spread=1.0)
    planned = replace(PLANNED, seen=surge, short=True)
    assert reasons(planned=planned) == (ReplanReason.RECOVERED,)
    assert reasons(planned=replace(planned, short=False)) == ()


def test_an_incident_with_another_cause_does_not_end_a_surge():
    before = situation(incidents={"i": LoadIncident(1, frozenset({CHAT}))})
    surge = present(arrivals=90.0, rate=80.0, waiting=900.0, spread=1.0)
    assert reasons(surge, replace(PLANNED, seen=surge, short=True), before=before) == ()


def test_lost_values_trigger_nothing():
    surge = replace(PLANNED, seen=present(arrivals=90.0, rate=80.0), short=True)
    assert reasons(replace(SEEN, present=PresentLoad()), surge) == ()
