"""Shared test objects: a small cluster, findings, alerts and incidents."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from alerts.rules.context import ServiceContext
from outrider.model import (
    Alert,
    AlertReason,
    AlertState,
    EntityKind,
    EntityRef,
    Evidence,
    Finding,
    Hypothesis,
    Incident,
    Layer,
    Priority,
    TimeRange,
)

T0 = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
SERVICE = EntityRef("c1", EntityKind.SERVICE, "llm", "chat")
REPLICA = EntityRef("c1", EntityKind.REPLICA, "llm", "chat-0")
GPU = EntityRef("c1", EntityKind.GPU, None, "GPU-1")
NODE = EntityRef("c1", EntityKind.NODE, None, "node-1")


class World:
    """Builds findings, alerts and incidents of one cluster."""

    t0 = T0
    service, replica, gpu, node = SERVICE, REPLICA, GPU, NODE

    def at(self, seconds: float) -> datetime:
        return T0 + timedelta(seconds=seconds)

    def finding(
        self, fault=None, entity=REPLICA, *, detector="liveness", score=0.9, severity=Priority.P1, observed=1.0, text=""
    ):
        evidence = (Evidence("engine_up", observed, None, text or "findings.none", {"n": "3"}),)
        window = TimeRange(T0, T0)
        print_ = f"{detector}|{entity.key}|{fault}"
        return Finding(
            detector, entity, ("engine_up",), severity, score, observed, None, window, evidence, print_, fault
        )

    def context(self, *, burning=(), unredundant=()):
        return ServiceContext(
            frozenset(burning),
            frozenset(unredundant),
            lambda entity: (SERVICE,) if entity in (REPLICA, GPU, NODE) else (),
        )

    def alert(self, rule="engine-dead", entity=REPLICA, *, priority=Priority.P1, fault="engine-dead", **fields):
        from alerts.state.machine import fingerprint

        made = {
            "fingerprint": fingerprint(rule, entity),
            "rule": rule,
            "priority": priority,
            "entity": entity,
            "state": AlertState.FIRING,
            "reason": AlertReason.STILL_TRUE,
            "starts_at": T0,
            "seen_at": T0,
            "fault": fault,
        }
        return Alert(**{**made, **fields})

    def incident(self, *alerts, priority=Priority.P1, cause=("engine-dead", REPLICA), id_="inc-1", **fields):
        hypotheses = (Hypothesis(cause[1], cause[0], 0.9),) if cause else ()
        made = {
            "id": id_,
            "layer": Layer.ENGINE,
            "priority": priority,
            "opened_at": T0,
            "hypotheses": hypotheses,
            "rejected": (),
            "alerts": tuple(alert.fingerprint for alert in alerts),
            "timeline": (),
            "updated_at": T0,
            "services": ("chat",),
        }
        return Incident(**{**made, **fields})


@pytest.fixture
def world() -> World:
    return World()
