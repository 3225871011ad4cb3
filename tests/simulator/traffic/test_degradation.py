"""The simulated gateway obeys degrade levels."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from outrider.errors import UsageError
from outrider.model import ActionKind, EntityKind, OutcomeStatus
from simulator.fleet import Fleet
from simulator.servers.control import Control
from simulator.spec.fleets import drill_spec
from simulator.traffic.degradation import Degradation, Degradations, classes_of

MINUTE = timedelta(minutes=1)


def control_of(fleet):
    control, numbers = Control(fleet), iter(range(1000))

    def order(kind, **params):
        target = fleet.entity(EntityKind.SERVICE, "chat-70b", "serving")
        return control.act(f"act-{next(numbers)}", kind, target, params)

    return order


def ended(fleet):
    """2xx and 429 responses of chat-70b in the next minute."""
    edge = fleet.traffic.edge
    before = edge.answered_2xx[0], edge.answered_429[0]
    fleet.step(MINUTE)
    edge = fleet.traffic.edge
    return edge.answered_2xx[0] - before[0], edge.answered_429[0] - before[1]


def test_offline_requests_are_rejected_with_429_until_the_level_ends():
    fleet = Fleet(drill_spec(), seed=3)
    order = control_of(fleet)
    assert ended(fleet)[1] == 0
    assert order(ActionKind.DEGRADE_SERVICE, level=1, reject=["offline"]).status is OutcomeStatus.DONE
    served, rejected = ended(fleet)
    assert 0.05 < rejected / (served + rejected) < 0.15, "the tenant internal sends a tenth"
    assert order(ActionKind.DEGRADE_SERVICE, level=1, reject=["offline"]).status is OutcomeStatus.ALREADY
    order(ActionKind.RESTORE_SERVICE, level=0)
    assert ended(fleet)[1] == 0


def test_vip_only_leaves_the_vip_share():
    fleet = Fleet(drill_spec(), seed=3)
    control_of(fleet)(ActionKind.DEGRADE_SERVICE, level=5, reject=["offline", "standard"])
    served, rejected = ended(fleet)
    served, rejected = ended(fleet)
    assert 0.2 < served / (served + rejected) < 0.4


def test_a_cap_shortens_answers():
    fleet = Fleet(drill_spec(), seed=3)
    control_of(fleet)(ActionKind.DEGRADE_SERVICE, level=3, max_output_tokens=64)
    fleet.step(2 * MINUTE)
    table = fleet.bank.table
    rows = table.rows()
    chat = fleet.pods.service_of_slot[table.replica[rows]] == 0
    assert table.output[rows][chat].max() <= 64 < table.output[rows][~chat].max()


def test_no_deferred_request_is_lost():
    fleet = Fleet(drill_spec(), seed=3)
    usual, _ = ended(fleet)
    order = control_of(fleet)
    order(ActionKind.DEGRADE_SERVICE, level=2, defer=["standard"])
    first, _ = ended(fleet)
    second, _ = ended(fleet)
    assert first < 0.85 * usual < second, "the first ones are held, and follow later"
    order(ActionKind.RESTORE_SERVICE, level=0)
    fleet.step(3 * MINUTE)
    assert not fleet.degradations.active
    totals = fleet.bank.totals
    assert totals.arrived == totals.finished + totals.failed + totals.gave_up + len(fleet.bank.table)


def test_the_fallback_model_is_faster():
    spec = drill_spec()
    levels = Degradations(spec.services)
    levels.set(0, Degradation(4, model="unknown"))
    np.testing.assert_array_equal(levels.step_factor, 1.0)
    levels.clear()
    assert not levels.active


def test_classes_follow_the_priority_of_tenants():
    chat, code = drill_spec().services
    assert classes_of(chat.tenants) == ["standard", "vip", "offline"]
    assert classes_of(code.tenants) == ["standard"]


def test_too_long_prompts_get_429_unless_their_class_is_exempt():
    fleet = Fleet(drill_spec(), seed=3)
    order = control_of(fleet)
    order(ActionKind.DEGRADE_SERVICE, level=1, max_prompt_tokens=1500, max_prompt_exempt=["vip"])
    fleet.step(MINUTE)  # requests of before have ended
    served, rejected = ended(fleet)
    assert 0.03 < rejected / (served + rejected) < 0.2
    tokens, (chat, _) = fleet.traffic.prompt_tokens, fleet.spec.services
    before = tokens[0].copy()
    table = fleet.bank.table
    rows = table.rows()
    longest = table.prompt[rows][fleet.pods.service_of_slot[table.replica[rows]] == 0].max()
    assert longest > 1500, "VIP requests are exempt"
    order(ActionKind.DEGRADE_SERVICE, level=1, max_prompt_tokens=1)
    fleet.step(MINUTE)
    np.testing.assert_array_equal(tokens[0], before)
    order(ActionKind.RESTORE_SERVICE, level=0)
    fleet.step(MINUTE)
    assert (tokens[0, : len(chat.tenants)] > before[: len(chat.tenants)]).all()


@pytest.mark.parametrize(
    "params",
    [{}, {"level": -1}, {"level": True}, {"level": 3, "max_output_tokens": 0}, {"level": 1, "max_prompt_tokens": True}],
)
def test_a_malformed_level_is_refused(params):
    with pytest.raises(UsageError):
        control_of(Fleet(drill_spec(), seed=3))(ActionKind.DEGRADE_SERVICE, **params)
