"""Which incidents of load concern a planned service."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from outrider.model import EntityKind, EntityRef, Hypothesis, Incident, Layer, Priority
from outrider.topology import Topology
from service.planning.concerned import load_incidents

NOW = datetime(2026, 5, 4, 13, tzinfo=UTC)
CHAT, CODE, POOL = (EntityRef("c", EntityKind.SERVICE, "llm", name) for name in ("chat", "code", "chat-prefill"))
REPLICA = EntityRef("c", EntityKind.REPLICA, "llm", "chat-0")
POOLS = Topology.build([(REPLICA, CHAT)], [POOL], {POOL: {"pool_of": "chat"}}, NOW)


def incident(fault: str, entity: EntityRef = CHAT) -> Incident:
    causes = (Hypothesis(entity, fault, 0.9),)
    return Incident("inc-1", Layer.TRAFFIC, Priority.P1, NOW, causes, (), (), (), NOW, services=("chat",))


@pytest.mark.parametrize("service", [CHAT, POOL])
def test_a_surge_of_a_service_concerns_it_and_its_pools(service: EntityRef) -> None:
    assert load_incidents([incident("traffic-surge")], service, POOLS)
    assert load_incidents([incident("kv-pressure", REPLICA)], service, POOLS)


def test_other_faults_and_other_services_are_no_load_of_it() -> None:
    assert load_incidents([incident("gpu-lost")], CHAT, POOLS) == []
    assert load_incidents([incident("traffic-surge")], CODE, POOLS) == []
    assert load_incidents([replace(incident("traffic-surge"), hypotheses=())], CHAT, POOLS) == []
