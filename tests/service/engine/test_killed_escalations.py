"""An engine that is killed during a night on call: no notification is lost, at most one is repeated a kill."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.errors import TakenOverError
from store.factory import open_state
from tests.service.engine.escalation_killing import check, kill_at_random, killed_between_steps, undisturbed
from tests.service.engine.escalation_life import NIGHT, decide_cycle, times


@pytest.mark.slow
def test_a_night_without_a_kill_has_every_message_once():
    night = undisturbed()
    assert set(night.values()) == {1}
    reasons = [name.split(":")[1] for name in night if name.startswith("inc-1") and ":voice:" in name]
    assert reasons == ["opened", "escalated", "rerouted", "escalated", "resolved"]
    assert [name for name in night if name.startswith("summary")] == [
        "summary:model:20260506T0830:ding",
        "summary:model:20260506T0830:mail",
    ]


@pytest.mark.slow
def test_a_kill_after_any_write_or_delivery_loses_no_message(tmp_path):
    counts, lives = killed_between_steps(tmp_path)
    check(counts, lives - 1)
    assert max(counts.values()) == 2, "a kill between delivery and record repeats it once"
    assert lives > 2 * len(undisturbed())


@pytest.mark.slow
def test_ten_kills_at_random_times_lose_no_message():
    nights, kills = kill_at_random(10, seed=5)
    assert nights >= 1
    assert kills >= 10


@pytest.mark.slow
def test_a_failover_in_every_cycle_changes_no_message(tmp_path):
    """Two engines decide every cycle; the one that lost the store commits first and is refused."""
    url = f"sqlite:///{tmp_path}/state.db"
    engines = [open_state(url), open_state(url)]
    planned: dict[str, None] = {}
    for number, now in enumerate(times()):
        late, leader = engines[number % 2], engines[(number + 1) % 2]
        if now >= NIGHT + timedelta(minutes=22):
            leader.acknowledge("inc-1", "zhao", now)
        both = [decide_cycle(engine, now) for engine in (late, leader)]
        assert [message.id for message in both[0].messages] == [message.id for message in both[1].messages]
        leader.take_over(f"engine {number}")
        if number:
            with pytest.raises(TakenOverError):
                late.commit(replace(both[0], incidents=()))
        leader.commit(both[1])
        planned |= dict.fromkeys(message.id for message in both[1].messages)
    stored = [message.id for message in leader.messages(limit=1000)]
    assert sorted(stored) == sorted(planned) == sorted(undisturbed())
    for engine in engines:
        engine.close()
