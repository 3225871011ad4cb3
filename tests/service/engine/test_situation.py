"""The situation of a cycle: ordered replicas, incidents of load, and ended actions by service."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    CellStatus,
    DecisionReason,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    Layer,
    Priority,
    Verdict,
    Window,
)
from outrider.topology import Topology
from service.engine.situation import ordered_replicas, situation
from service.planning.replan import LoadIncident

NOW = datetime(2026, 11, 18, 17, tzinfo=UTC)
CHAT = EntityRef("c", EntityKind.SERVICE, "prod", "chat")
ENGINES = tuple(EntityRef("c", EntityKind.REPLICA, "prod", f"chat-{number}") for number in range(3))
POD = EntityRef("c", EntityKind.POD, "prod", "chat-0")
TOPOLOGY = Topology.build([*((engine, CHAT) for engine in ENGINES), (POD, ENGINES[0])], [CHAT])


class Values:
    """Two minutes at a constant rate without a queue."""

    def window(self, kind, keys, span):
        entities = (CHAT,) if kind is EntityKind.SERVICE else ENGINES
        times = NOW.timestamp() - 15.0 * np.arange(7, -1, -1)
        values = np.full((len(entities), 8, len(keys)), 5.0)
        values[:, :, 1] = 0.0
        del span
        return Window(
            kind, entities, times, tuple(keys), values, np.full(values.shape, CellStatus.PRESENT, np.uint8),
            timedelta(seconds=15),
        )  # fmt: skip


def action(kind=ActionKind.SCALE, target=CHAT, *, replicas=6, current=3, minutes=1, **changes):
    at = NOW - timedelta(minutes=minutes)
    usual = Action(
        id=f"act-{kind}-{minutes}", session="plan", kind=kind, target=target,
        params={"replicas": replicas, "current": current}, because="plan", dry_run=False,
        decision=Verdict.ALLOWED, reason=DecisionReason.WITHIN_LIMITS, status=ActionStatus.DONE,
        decided_at=at, ended_at=at,
    )  # fmt: skip
    return replace(usual, **changes)


def seen(*actions, incidents=()):
    return situation(TOPOLOGY, Values(), {CHAT: 3}, incidents, actions, NOW)


def incident(fault, entity, **changes):
    cause = Hypothesis(entity, fault, 0.9, ())
    usual = Incident("i", Layer.TRAFFIC, Priority.P1, NOW, (cause,), (), (), (), NOW)
    return replace(usual, **changes)


def test_replicas_and_load_of_a_service():
    (state,) = seen().services.values()
    assert (state.current, state.ready) == (3, 3)
    assert (state.present.rate, state.present.running, state.present.waiting) == (5.0, 15.0, 0.0)


@pytest.mark.parametrize(
    ("ordered", "current"),
    [
        (action(), 6),
        (action(status=ActionStatus.INTENDED, ended_at=None), 6),
        (action(minutes=16), 3),  # they would have started
        (action(replicas=2), 3),  # a scale-in is visible in the topology
        (action(status=ActionStatus.FAILED), 3),
        (action(status=ActionStatus.WAITING_APPROVAL, ended_at=None), 3),
        (action(dry_run=True), 3),
    ],
)
def test_replicas_count_from_the_order_while_they_start(ordered, current):
    assert seen(ordered).services[CHAT].current == current


def test_the_newest_order_counts():
    assert ordered_replicas([action(minutes=1, replicas=8), action(minutes=3, replicas=6)], NOW) == {CHAT: 8}
    assert ordered_replicas([action(minutes=1, replicas=2, current=6), action(minutes=3)], NOW) == {}


def test_incidents_with_a_load_as_their_cause_concern_its_service():
    assert seen(incidents=[incident("kv-pressure", ENGINES[1])]).incidents == {"i": LoadIncident(1, frozenset({CHAT}))}
    elsewhere = EntityRef("c", EntityKind.SERVICE, "prod", "code")
    named = incident("traffic-surge", elsewhere, services=("chat",))
    assert seen(incidents=[named]).incidents["i"].services == {CHAT}
    others = [incident("gpu-lost", ENGINES[1]), incident("traffic-surge", CHAT, resolved_at=NOW)]
    assert seen(incidents=others).incidents == {}


def test_ended_actions_on_a_pod_concern_its_service():
    restart = action(ActionKind.RESTART_POD, POD)
    running = action(ActionKind.DRAIN, POD, minutes=2, status=ActionStatus.CLAIMED, ended_at=None)
    assert seen(restart, running).ended == {restart.id: frozenset({CHAT})}
