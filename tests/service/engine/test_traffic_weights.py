"""Traffic weights of services with an active skew, from the values of their replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import (
    Alert,
    AlertReason,
    AlertState,
    CellStatus,
    EntityKind,
    EntityRef,
    Floats,
    Plan,
    Priority,
    SignalKey,
    Window,
)
from outrider.topology import Topology
from service.engine import fleet_state, traffic_weights

T0 = datetime(2026, 11, 23, 12, tzinfo=UTC)
STEP, SLOTS = timedelta(seconds=15), 40
NOW = T0 + STEP * (SLOTS - 1)
CHAT = EntityRef("c", EntityKind.SERVICE, "serving", "chat")
REPLICAS = tuple(EntityRef("c", EntityKind.REPLICA, "serving", f"chat-{number}") for number in range(4))
TOPOLOGY = Topology.build([(replica, CHAT) for replica in REPLICAS])
SKEW = Alert(
    "skew", "skew", Priority.P1, REPLICAS[2], AlertState.FIRING, AlertReason.STILL_TRUE,
    NOW - timedelta(seconds=90), NOW, fault="traffic-skew",
)  # fmt: skip


class Values:
    """Replicas with ``usual`` requests in a cycle, and ``now`` in the last 90 s; counts the reads."""

    def __init__(self, usual: Sequence[float], now: Sequence[float]) -> None:
        self.reads = 0
        self._requests = np.repeat(np.asarray(usual, dtype=np.float64)[:, None], SLOTS, axis=1)
        self._requests[:, -6:] = np.asarray(now)[:, None]

    def _column(self, name: str) -> Floats:
        factors = {"engine_generation_tokens_total": 250.0, "engine_requests_running": 0.5}
        if name == "target_up":
            return np.ones_like(self._requests)
        known = {"engine_requests_finished_total", "engine_requests_waiting", *factors}
        if name not in known:
            return np.full_like(self._requests, np.nan)
        return self._requests * (0.0 if name == "engine_requests_waiting" else factors.get(name, 1.0))

    def window(self, kind: EntityKind, keys: Sequence[SignalKey], span: timedelta) -> Window:
        del span
        self.reads += tuple(keys) == traffic_weights.VALUES
        entities = REPLICAS if kind is EntityKind.REPLICA else ()
        values = np.stack([self._column(key.name)[: len(entities)] for key in keys], axis=2)
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        times = np.array([(T0 + STEP * slot).timestamp() for slot in range(SLOTS)])
        return Window(kind, entities, times, tuple(keys), values, status, STEP)


def weights(values: Values, *alerts: Alert, usable: Sequence[EntityRef] = REPLICAS) -> dict[str, int]:
    return traffic_weights.weights(alerts, TOPOLOGY, values, frozenset(usable)).get(CHAT, {})


def test_a_skewed_replica_returns_to_its_usual_share():
    found = weights(Values([20] * 4, [17, 17, 41, 17]), SKEW)
    assert sum(found.values()) == 100
    assert found["chat-2"] == pytest.approx(25, abs=2)
    assert max(found.values()) - min(found.values()) <= 3


def test_an_intended_difference_stays():
    found = weights(Values([30, 30, 15, 15], [26, 26, 40, 13]), SKEW)
    assert found["chat-0"] / found["chat-3"] == pytest.approx(2.0, abs=0.25)
    assert found["chat-2"] == pytest.approx(100 / 6, abs=3)


def test_only_an_active_skew_costs_a_read():
    values = Values([20] * 4, [17, 17, 41, 17])
    assert weights(values) == {}
    assert weights(values, replace(SKEW, fault="traffic-surge")) == {}
    assert weights(values, replace(SKEW, state=AlertState.RESOLVED)) == {}
    assert values.reads == 0


def test_a_replica_that_is_unhealthy_or_idle_gets_no_weight():
    assert set(weights(Values([20] * 4, [17, 17, 41, 17]), SKEW, usable=REPLICAS[1:])) == {
        f"chat-{n}" for n in (1, 2, 3)
    }
    assert set(weights(Values([20, 20, 20, 0], [17, 17, 41, 0]), SKEW)) == {f"chat-{n}" for n in (0, 1, 2)}


@pytest.mark.parametrize(
    ("usual", "now"),
    [
        pytest.param([np.nan] * 4, [17, 17, 41, 17], id="no usual load"),
        pytest.param([20] * 4, [np.nan] * 4, id="no present values"),
        pytest.param([20] * 4, [20] * 4, id="no gain"),
        pytest.param([20] * 4, [60, 60, 62, 60], id="all are as busy: replicas are missing"),
    ],
)
def test_without_known_or_better_weights_there_are_none(usual: list[float], now: list[float]):
    assert weights(Values(usual, now), SKEW) == {}


def test_a_skew_older_than_the_values_has_no_known_usual_load():
    assert weights(Values([20] * 4, [17, 17, 41, 17]), replace(SKEW, starts_at=T0)) == {}


def test_the_facts_of_the_fleet_hold_the_weights():
    values = Values([20] * 4, [17, 17, 41, 17])
    facts = fleet_state.fleet_facts((), (SKEW,), Plan(), TOPOLOGY, values, sessions=(), paused=False)
    assert set(facts.traffic_weights[CHAT]) == {replica.name for replica in REPLICAS}
    calm = fleet_state.fleet_facts((), (), Plan(), TOPOLOGY, values, sessions=(), paused=False)
    assert calm.traffic_weights == {}
