"""Impact on a service if nothing is started, and the time from which it is short."""

from __future__ import annotations

import re

import numpy as np
import pytest

from outrider.documents import serialization
from outrider.model import EngineLoad, Recommendation
from planner.capacity import derivation
from planner.capacity.fluid_queue import simulate_queue
from planner.capacity.no_action_impact import when_lines
from planner.capacity.plan import PlanSettings, plan
from service.cli.core.tables import recommendations as table


def _plan(build, values, **fleet) -> Recommendation:
    known = {build.service: build.calibration()}
    (result,) = plan(
        build.history(values), known, [build.fleet(**fleet)], build.now, settings=PlanSettings()
    ).recommendations
    assert isinstance(result, Recommendation), result
    return result


def _constant(level: float) -> np.ndarray:
    return np.full(5 * 144, level)


@pytest.mark.parametrize(("language", "none"), [("en", "no request"), ("zh", "没有请求")])
def test_a_current_queue_is_never_reported_as_no_waiting(build, language, none):
    held = EngineLoad(running=320.0, waiting=2000.0)
    result = _plan(build, _constant(20.0), current_replicas=20, ready_replicas=20, ceiling=100, engines=held)
    without = result.derivation["without"]
    assert without["short_now"] == {"need": result.derivation["need_now"], "has": 20}
    assert without["queued"] == 2000.0
    assert 0 < without["waited"] < 4000, "the queue and those that come while it drains"
    (text,) = [line for line in derivation.lines(result, language) if f"{without['waited']:,}" in line]
    assert str(result.derivation["need_now"]) in text
    assert not [line for line in derivation.lines(result, language) if none in line]


def test_a_service_with_enough_replicas_and_no_queue_reports_no_waiting(build):
    result = _plan(build, _constant(20.0), current_replicas=20, ready_replicas=20)
    assert result.derivation["without"]["short_now"] is None
    assert any("no request of the next 24 h" in line for line in derivation.lines(result))


def test_short_by_its_engines_is_short_from_now_and_the_start_is_past(build):
    held = EngineLoad(running=320.0, waiting=2000.0)
    result = _plan(build, _constant(20.0), current_replicas=20, ready_replicas=20, ceiling=100, engines=held)
    assert result.need_at == build.now
    assert result.needed_by == build.now - result.lead_time
    assert any("needed from now" in line and "has passed" in line for line in derivation.lines(result))
    shown = table([serialization.recommendation(result)], "en")
    assert "(now)" in shown
    assert "(overdue)" in shown


def test_replicas_removed_by_a_scale_in_start_again_in_time(build):
    values = build.wave(6.0, level=20.0, noise=0.0)
    result = next(
        result
        for turn in range(0, 144, 12)
        if (
            result := _plan(build, np.roll(values, turn), current_replicas=20, ready_replicas=20, ceiling=20)
        ).target_replicas
        < 20
        and result.need_at is not None
    )
    assert result.needed_by == result.need_at - result.lead_time
    assert any(result.derivation["short"]["start_by"] in line for line in derivation.lines(result))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"ceiling": 12}, "the configured ceiling"),
        ({"quota_gpus": 48}, "the GPU quota"),
        ({"placeable_replicas": 12}, "the free GPUs"),
    ],
)
def test_if_nothing_can_be_started_the_limit_is_the_reason(build, limits, reason):
    result = _plan(build, _constant(40.0), current_replicas=12, ready_replicas=12, **limits)
    assert result.needed_by is None
    assert any("no further start is possible" in line and reason in line for line in derivation.lines(result))
    assert "- (the" in table([serialization.recommendation(result)], "en"), "a column may break the words behind"


def test_while_enough_are_ordered_nothing_is_to_be_started(build):
    starting = {"current_replicas": 20, "ready_replicas": 12, "ceiling": 40}
    result = _plan(build, _constant(40.0), **starting)
    assert result.target_replicas == 20
    assert (result.need_at, result.needed_by) == (build.now, None), "a start time would ask for more"
    assert any("enough replicas are ordered, none is to be started" in line for line in derivation.lines(result))
    assert "- (enough are" in table([serialization.recommendation(result)], "en")


def test_the_start_of_a_later_rise_is_that_of_the_next_need(build):
    values = build.wave(6.0, level=20.0, noise=0.0)
    plans = (
        _plan(build, np.roll(values, turn), current_replicas=20, ready_replicas=20, ceiling=40)
        for turn in range(0, 144, 12)
    )
    result = next(plan for plan in plans if plan.needed_by is not None and plan.target_replicas <= 20)
    assert result.needed_by > build.now
    assert any(line.startswith("next need from") for line in derivation.lines(result))
    assert "(next need)" in " ".join(table([serialization.recommendation(result)], "en").split())


def test_a_service_that_is_never_short_has_no_line_of_it(build):
    result = _plan(build, _constant(20.0), current_replicas=20, ready_replicas=20)
    assert result.need_at is None
    assert when_lines(result.derivation["short"], "en") == []
    assert when_lines(None, "en") == []


def test_requests_queued_at_the_start_wait_for_the_work_before_them():
    times, none = np.array([0.0, 600.0]), np.zeros(2)
    starts, serves = np.array([0.0]), np.array([10.0])
    assert simulate_queue(times, none, starts, serves, queued=15.0).waited == 0
    late = simulate_queue(times, none, starts, serves, queued=120.0)
    assert late.waited == pytest.approx(100.0), "the first twenty are served within two seconds"
    assert late.first_at == 0.0
    busy = simulate_queue(times, np.full(2, 5.0), starts, serves, queued=120.0)
    assert busy.waited > 100.0, "and those that come behind them wait, too"


def test_a_count_of_one_uses_the_singular(build):
    result = _plan(build, _constant(1.0), current_replicas=1, ready_replicas=1, floor=1, ceiling=1, quota_gpus=4)
    text = "\n".join(derivation.lines(result))
    assert "needs 1 replica\n" in text
    assert "1 replica (4 GPUs)" in text
    assert not re.search(r"\b1 (replicas|GPUs|nodes|starts)\b", text)
