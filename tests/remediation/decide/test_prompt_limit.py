"""The limit of long prompts: taken first while prompts are long, at any level, and ended once few are rejected."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from outrider.model import ActionKind, ActionStatus, DecisionReason
from remediation.decide import degrade
from remediation.decide.autonomy import Autonomy, AutonomyLevels
from remediation.decide.history import History
from remediation.decide.service_load import LoadSample, PromptLength, ServiceLoad
from remediation.procedures import files
from tests.remediation.decide.test_degrade import CYCLE, Surge, opened

USUAL, LONG = PromptLength(1000.0, 1000.0), PromptLength(3500.0, 1000.0)
LADDER = files.ladder()


class Burst(Surge):
    """A service with long prompts: the capacity is too small until they are limited."""

    def __init__(self, fleet, **options) -> None:
        super().__init__(fleet, **options)
        self.prompts: PromptLength | None = LONG
        self.rejected: float | None = None  # requests/s with 429; None: not counted

    def cycle(self, offered, capacity=80.0):
        limited = degrade.standing(History(self.fleet.actions.values()), self.fleet.service).limits_prompts
        long = self.prompts is LONG and not limited
        self.waiting = max(0.0, self.waiting + (offered - capacity * (0.5 if long else 1.0)) * CYCLE.total_seconds())
        self.samples.append(LoadSample(self.fleet.now, self.waiting, min(offered, capacity), 0.0, self.rejected))
        load = ServiceLoad(tuple(self.samples[-24:]), self.prompts)
        self.fleet.facts = replace(self.fleet.facts, load={self.fleet.service: load})
        before = set(self.fleet.actions)
        decisions = self.fleet.decide(procedures=self.procedures)
        self.fleet.actions |= {action.id: action for action in decisions.actions}
        self.fleet.sessions |= {session.id: session for session in decisions.sessions}
        self.fleet.perform()
        self.fleet.now += CYCLE
        return [action for action in self.changes() if action.id not in before]

    def until(self, reached, offered=60.0, most=400):
        """The time until a condition holds."""
        start = self.fleet.now
        for _ in range(most):
            if reached():
                return self.fleet.now - start
            self.cycle(offered)
        raise AssertionError("never reached")


@pytest.fixture
def burst(fleet):
    return Burst(fleet)


def began(burst, fault="long-prompt-burst"):
    burst.prompts = USUAL
    burst.run(8, 60.0)
    burst.prompts = LONG
    return burst.fleet.break_(fault, burst.fleet.service)


@pytest.mark.parametrize("fault", ["long-prompt-burst", "kv-pressure", "traffic-surge"])
def test_long_prompts_are_limited_before_anything_else_is_given_up(burst, fault):
    """Whatever the queue is attributed to, the measured length decides."""
    began(burst, fault)
    burst.run(12, 60.0)
    (change,) = burst.changes()
    assert change.params["name"] == "limit_prompts"
    assert (change.params["max_prompt_tokens"], change.params["max_prompt_exempt"]) == (3000, ["vip"])
    assert (change.params["reject"], change.params["defer"], change.params["max_output_tokens"]) == ([], [], None)
    assert "capacity_per_replica" not in change.params, "that of long prompts would keep later levels for ever"


@pytest.mark.parametrize("prompts", [USUAL, PromptLength(1400.0, 1000.0), None])
def test_prompts_of_usual_or_unknown_length_are_not_limited(fleet, prompts):
    burst = Burst(fleet)
    opened(burst, "traffic-surge")
    burst.prompts = prompts
    burst.run(40, 110.0)
    assert burst.changes()[0].params["name"] == "pause_offline"
    assert not any(action.params["max_prompt_tokens"] for action in burst.changes())


def test_a_limit_is_never_below_that_of_the_service(fleet):
    burst = Burst(fleet, max_prompt_tokens=8000, classes=frozenset())
    began(burst)
    burst.run(12, 60.0)
    assert burst.changes()[0].params["max_prompt_tokens"] == 8000
    assert burst.changes()[0].params["max_prompt_exempt"] == [], "clients mark no class"


def test_long_prompts_during_a_surge_are_limited_at_the_present_level(burst):
    burst.prompts = USUAL
    opened(burst, "traffic-surge")
    burst.until(lambda: burst.level() == 3, offered=110.0)
    burst.prompts = LONG
    burst.until(lambda: burst.changes()[-1].params["max_prompt_tokens"], offered=110.0)
    change = burst.changes()[-1]
    assert (change.params["level"], change.params["max_prompt_tokens"]) == (3, 3000)
    assert change.params["defer"] == ["standard"], "the level itself is unchanged"
    burst.prompts = USUAL
    burst.until(lambda: burst.level() > 3, offered=110.0)
    assert burst.changes()[-1].params["max_prompt_tokens"] == 3000, "deeper levels keep the limit"
    burst.fleet.mend(burst.fleet.service, resolve="inc-0")
    burst.until(lambda: burst.level() == 0, offered=40.0)
    levels = [action.params["level"] for action in burst.changes() if action.kind is ActionKind.RESTORE_SERVICE]
    assert levels[-2:] == [1, 0], "the limit ends last"
    assert burst.changes()[-1].params["max_prompt_tokens"] is None


def test_a_limit_ends_once_few_requests_are_rejected(burst):
    began(burst)
    burst.until(lambda: burst.level() == 1)
    burst.rejected = 20.0
    burst.run(100, 60.0)
    assert burst.level() == 1, "a quarter of the requests is still rejected"
    burst.rejected = 1.0
    assert burst.until(lambda: burst.level() == 0) <= LADDER.level(1).exit_for + 2 * CYCLE


def test_a_limit_whose_rejections_nobody_counts_ends_as_a_trial(burst):
    began(burst)
    burst.until(lambda: burst.level() == 1)
    assert burst.until(lambda: burst.level() == 0) == pytest.approx(LADDER.unmeasured_exit, abs=2 * CYCLE)
    burst.until(lambda: burst.level() == 1)
    assert burst.until(lambda: burst.level() == 0) >= LADDER.unmeasured_exit


def test_rejections_for_another_reason_do_not_keep_a_limit_for_ever(burst):
    began(burst)
    burst.until(lambda: burst.level() == 1)
    burst.rejected = 60.0
    assert burst.until(lambda: burst.level() == 0) == pytest.approx(LADDER.longest_exit, abs=2 * CYCLE)


def test_a_rejected_limit_is_not_proposed_again(burst):
    began(burst)
    burst.fleet.policy = replace(burst.fleet.policy, autonomy=AutonomyLevels(Autonomy.APPROVE))
    burst.run(8, 60.0)
    (waiting,) = burst.changes()
    rejected = replace(waiting, status=ActionStatus.REFUSED, reason=DecisionReason.REJECTED_BY_HAND)
    burst.fleet.actions[waiting.id] = rejected
    burst.fleet.policy = replace(burst.fleet.policy, autonomy=AutonomyLevels(Autonomy.ACT))
    burst.run(20, 60.0)
    assert burst.changes() == [rejected]


def test_a_later_burst_is_limited_by_its_own_usual_length(burst):
    began(burst)
    burst.until(lambda: burst.level() == 1)
    burst.until(lambda: burst.level() == 0)
    burst.prompts = LONG
    burst.fleet.now += timedelta(hours=2)
    burst.samples.clear()
    burst.until(lambda: burst.level() == 1)
    assert burst.changes()[-1].params["usual_prompt_tokens"] == 1000.0
