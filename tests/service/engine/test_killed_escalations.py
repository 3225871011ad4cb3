"""An engine that is killed during a night on call loses no notification; a kill repeats at most one of a channel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.errors import TakenOverError
from store.factory import open_state
from tests.service.engine.escalation_killing import (
    check,
    kill_at_random,
    kill_engine_or_standby,
    killed_between_steps,
    undisturbed,
)
from tests.service.engine.escalation_life import ACKNOWLEDGED, MERGING, NIGHT, STORM_MESSAGES, decide_cycle, times


@pytest.mark.slow
def test_a_night_without_a_kill_has_every_message_once():
    night = undisturbed()
    assert set(night.values()) == {1}
    assert reasons(night, "voice") == ["opened", "escalated", "escalated", "resolved"]
    assert reasons(night, "backup") == ["rerouted", "resolved"], "what voice refused, and the end"
    to_chat = [reason for reason in reasons(night, "ding") if reason != "status"]
    assert to_chat == ["opened", "escalated", "moved", "rerouted", "escalated", "resolved"]
    assert sum(channel == "feed" for channel, _ in night) == STORM_MESSAGES
    assert sorted(name for _, name in night if name.startswith("summary")) == [
        "summary:model:20260506T0830:ding:ding",
        "summary:model:20260506T0830:mail:mail",
    ]


def reasons(night, of_channel):
    """The reasons of the messages about the incident, in the order of their delivery."""
    return [name.split(":")[1] for channel, name in night if channel == of_channel and name.startswith("inc-1")]


@pytest.mark.slow
def test_a_kill_after_any_write_or_delivery_loses_no_message(tmp_path):
    counts, lives = killed_between_steps(tmp_path)
    check(counts, lives - 1)
    assert max(counts.values()) == 2, "a kill between delivery and record repeats it once"
    alone = [key for key in undisturbed() if key[0] != MERGING]
    assert lives > 3 * len(alone), "each one is claimed, sent and recorded"


@pytest.mark.slow
def test_ten_kills_at_random_times_lose_no_message():
    nights, kills = kill_at_random(10, seed=5)
    assert nights >= 1
    assert kills >= 10


@pytest.mark.slow
def test_ten_kills_of_an_engine_or_its_standby_lose_no_message(postgres_server):
    nights, kills = kill_engine_or_standby(10, 5, postgres_server.database)
    assert nights >= 1
    assert kills >= 10


@pytest.mark.slow
def test_a_failover_in_every_cycle_changes_no_message(tmp_path):
    """Two engines decide every cycle; the one that lost the store commits first and is refused."""
    alone = open_state(f"sqlite:///{tmp_path}/alone.db")
    undisturbed_night = planned(lambda _number: (alone,))
    engines = [open_state(f"sqlite:///{tmp_path}/shared.db") for _ in range(2)]
    of_both = planned(lambda number: (engines[number % 2], engines[(number + 1) % 2]))
    assert of_both == undisturbed_night
    assert sorted(message.id for message in engines[0].messages(limit=1000)) == sorted(of_both)
    for engine in (alone, *engines):
        engine.close()


def planned(engines_of):
    """The messages of a night whose cycle is decided by each of the engines, and committed by the last one of them."""
    planned_ids: dict[str, None] = {}
    for number, now in enumerate(times()):
        *late, leader = engines_of(number)
        if now >= NIGHT + ACKNOWLEDGED:
            leader.acknowledge("inc-1", "zhao", now)
        [*commits_of_late, commit] = [decide_cycle(engine, now) for engine in (*late, leader)]
        leader.take_over(f"engine {number}")
        for engine, refused in zip(late, commits_of_late, strict=True):
            assert [message.id for message in refused.messages] == [message.id for message in commit.messages]
            if number:
                with pytest.raises(TakenOverError):
                    engine.commit(replace(refused, incidents=()))
        leader.commit(commit)
        planned_ids |= dict.fromkeys(message.id for message in commit.messages)
    return list(planned_ids)
