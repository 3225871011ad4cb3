from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from outrider.clock import from_unix
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from planner.capacity.lead_bound import (
    DEFAULT_RULE,
    RULES,
    Basis,
    BoundRule,
    build_paths,
    drop_collapses,
    fill_gaps,
    forecast_path,
    highest_between,
)
from planner.capacity.prescale import decide, target
from planner.forecast import forecast
from planner.replay import figure, score
from planner.replay.aws_predictive import hourly_forecast, hourly_policy
from planner.replay.backtest import Trace
from planner.replay.fleet import SETTLE_MINUTES, FleetState, Run, simulate
from planner.replay.policies import ConcurrencyPolicy, Timetable, UtilizationPolicy, cron, static_peak
from planner.replay.rule_choice import choose_rules
from planner.replay.score import StrategyScore, TraceReplay, least_replica_minutes, reversals
from planner.replay.service_rule import best_rule
from planner.replay.workload import RATE_VARIATION, Workload, arrivals, build_workload

FIVE = timedelta(minutes=5)
START = 1_767_225_600.0


def _trace(values, name="t", minutes=10):
    values = np.asarray(values, dtype=float)
    return Trace(name, START + 60.0 * minutes * np.arange(values.size), values, timedelta(minutes=minutes))


def _wave(days, seed=3):
    """Days of a wave with noise and an occasional burst of one slot."""
    random = np.random.default_rng(seed)
    slots = np.arange(round(days * 144))
    load = 40.0 + 25.0 * np.sin(2 * np.pi * slots / 144.0) + random.normal(0, 1.0, slots.size)
    return np.where(random.random(slots.size) < 0.01, 1.6, 1.0) * load


def _flat(load, first=0, per_replica=1.0):
    load = np.asarray(load, dtype=float)
    slots = np.full(load.size // 10 + 1, load[0])
    return Workload("flat", load, load, np.ones(load.size, dtype=bool), slots, 10, per_replica, first)


def _changed_after(made, slot, seed=11):
    """The same workload with other arrivals from the beginning of ``slot`` on."""
    minute = slot * made.slot_minutes
    other = 3.0 * np.random.default_rng(seed).permutation(made.load[minute:]) + made.per_replica
    load, slots = np.concatenate([made.load[:minute], other]), made.slots.copy()
    slots[slot:] = load[: slots.size * made.slot_minutes].reshape(-1, made.slot_minutes).mean(axis=1)[slot:]
    return replace(made, load=load, slots=slots, seen=np.concatenate([made.seen[:minute], np.ones(other.size, bool)]))


@pytest.fixture(scope="module")
def replayed():
    values = _wave(7.0)
    values[700:706] = np.nan
    return score.replay([_trace(values)], startup=FIVE)


def test_a_missing_slot_uses_the_day_before_and_is_not_observed():
    values = _wave(6.0)
    values[600] = np.nan
    made = build_workload(_trace(values))
    assert made.expected[6000] == pytest.approx(values[600 - 144])
    assert not made.seen[6000:6010].any()
    assert made.seen[6010]
    assert np.isnan(made.slots[600])
    assert made.slots[601] == pytest.approx(made.load[6010:6020].mean())
    assert made.first == 4 * 1440
    assert np.percentile(made.load, 99.9) / made.per_replica == pytest.approx(40.0)


@pytest.mark.parametrize(
    ("trace", "text"),
    [
        (_trace(_wave(3.5)), "not enough to replay"),
        (_trace(np.zeros(1008)), "the load is always 0"),
        (_trace(np.full(1008, np.nan)), "no slot has a value"),
        (_trace(_wave(7.0), minutes=7), "cannot be replayed"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused_with_its_name(trace, text):
    with pytest.raises(UsageError, match=f"t: .*{text}"):
        build_workload(trace)


@pytest.mark.parametrize("startup", [timedelta(0), timedelta(hours=2)])
def test_an_invalid_startup_time_is_refused(startup):
    with pytest.raises(UsageError, match="--startup"):
        score.replay([_trace(_wave(7.0))], startup=startup)


def test_in_a_fleet_that_is_too_small_requests_wait_until_they_leave():
    # 2 requests/s at a capacity of 1/s: the wait grows by one second a second
    load = np.concatenate([np.ones(1), np.full(9, 2.0)])
    run = simulate(_flat(load), [Timetable("one", np.ones((10, 1)))], FIVE, 0)
    # over two seconds from the second second of overload on: 2 of 540 s, a straight line within a step
    assert run.waiting[:, 0].sum() == pytest.approx(2.0 * (9 * 60 - 2))
    assert run.billed_minutes.sum() == pytest.approx(10.0)


def test_a_started_replica_serves_after_its_startup_and_is_billed_from_its_launch():
    load = np.concatenate([np.ones(1), np.full(14, 2.0)])
    wanted = np.concatenate([np.ones(1), np.full(14, 2.0)])[:, None]
    run = simulate(_flat(load), [Timetable("two", wanted)], FIVE, 0)
    assert run.billed_minutes.sum() == pytest.approx(1 + 14 * 2)
    # five minutes of overload; then the two replicas just serve the load, and the backlog of 30 s stays
    assert run.waiting[1, 0] > 0
    enough = np.where(np.arange(15) < 6, wanted[:, 0], 3.0)[:, None]
    relieved = simulate(_flat(load), [Timetable("three", np.maximum(enough, wanted + 1))], FIVE, 0)
    assert relieved.waiting[5, 0] > 0
    assert relieved.waiting[8:, 0].sum() == 0


def test_scale_in_waits_five_minutes_and_removes_starting_replicas_first():
    wanted = np.array([1.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])[:, None]
    run = simulate(_flat(np.ones(12)), [Timetable("x", wanted)], timedelta(minutes=20), 0)
    assert run.replicas[5, 0] == 4.0
    assert run.replicas[7, 0] == 1.0
    assert run.waiting.sum() == 0


def test_the_oracle_pays_each_stretch_and_bridges_short_gaps():
    load = np.ones(100)
    load[20:30] = 2.0
    load[33:40] = 2.0
    load[60:70] = 2.0
    # level 1: 100; level 2: stretches of 10, 7 and 10, a gap of 3 bridged, two start-ups of 5
    assert least_replica_minutes(_flat(load), 5.0) == pytest.approx(100 + 27 + 3 + 10)
    assert least_replica_minutes(_flat(load), 1.0) == pytest.approx(100 + 27 + 3)


def test_arrivals_are_over_dispersed_counts():
    expected = np.full(200_000, 20.0)
    counts = arrivals(expected) * 60.0
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-6)
    assert counts.mean() == pytest.approx(1200.0, rel=0.001)
    # the variance of a Poisson count and that of its rate
    assert counts.var() == pytest.approx(1200.0 + (RATE_VARIATION * 1200.0) ** 2, rel=0.02)
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 0.01
    np.testing.assert_array_equal(arrivals(expected[:50]), arrivals(expected[:50]))
    assert (arrivals(np.zeros(50)) == 0).all()


def test_policies_see_the_arrivals_of_whole_past_minutes_alone():
    seen = []

    class Watching:
        name, lanes = "watching", 1

        def desired_replicas(self, state):
            seen.append((int(state.minute[0, 0]), float(state.rate[0, 0])))
            return np.ones((1, 1))

    load = np.arange(1.0, 9.0)
    simulate(_flat(load), [Watching()], FIVE, 2)
    assert dict(seen) == {minute: load[minute - 1] for minute in range(2, 8)}
    assert len(set(seen)) == 6


@pytest.mark.slow
@pytest.mark.parametrize(("slot", "seed"), [(700, 1), (903, 2)])
def test_no_decision_depends_on_later_arrivals(slot, seed):
    values = _wave(7.0, seed)
    values[640:646] = np.nan
    made = build_workload(_trace(values))
    changed, until = _changed_after(made, slot, seed), slot * 10
    runs = []
    for each in (made, changed):
        ours, rules = score.choose_policy(each, FIVE)
        others = [cron(each, 5)[0], hourly_policy(each, 5)[0], ConcurrencyPolicy(np.array([0.7]))]
        run = simulate(each, [ours, *others], FIVE, 4 * 1440)
        runs.append((rules, ours.needs, run.replicas))
    # the decisions of a minute see the minutes before it, and the queue within it
    for one, other, known in zip(*runs, (until + 1, until + 1, until - 4 * 1440), strict=True):
        np.testing.assert_array_equal(one[:known], other[:known])
    for one, other in zip(runs[0][1:], runs[1][1:], strict=True):
        assert not np.array_equal(one, other)


def test_a_bound_joins_the_recent_load_and_the_forecast():
    recent, now, serves = (np.array([value]) for value in (10.0, 20.0, 30.0))
    assert BoundRule(Basis.PRESENT, 0.5).bound(recent, now, serves)[0] == pytest.approx(15.0)
    assert BoundRule(Basis.GROWTH, 0.0).bound(recent, now, serves)[0] == pytest.approx(15.0)
    assert BoundRule(Basis.FORECAST, 0.0).bound(recent, now, serves)[0] == pytest.approx(30.0)
    # growth is limited: a forecast of nearly nothing is no reason for thousands of replicas
    assert BoundRule(Basis.GROWTH, 0.0).bound(recent, np.array([1e-3]), serves)[0] == pytest.approx(30.0)
    assert BoundRule(Basis.GROWTH, 0.0).bound(recent, np.zeros(1), serves)[0] == pytest.approx(10.0)


@pytest.mark.slow
def test_a_replay_forecasts_like_the_plan_of_that_time():
    values = _wave(6.0)
    replayed = build_paths(values, 144, 600.0, 6)
    times = START + 600.0 * np.arange(values.size)
    origin = 5 * 144
    now = from_unix(float(times[origin]))
    entity = EntityRef("lab", EntityKind.SERVICE, "prod", "chat")
    text = forecast(times, values, signal="svc_requests_per_second", entity=entity, now=now, models=("ensemble",))
    live = forecast_path(text, float(values[origin - 1]))
    np.testing.assert_allclose(live[0, :7], replayed[origin - 1], rtol=0.01)


def test_the_highest_between_two_moments_follows_the_lines_between_slots():
    knots = np.array([[1.0, 3.0, 2.0, 5.0]])

    def between(begin, end):
        return highest_between(knots, np.array([begin]), np.array([end]))[0]

    assert between(0.5, 0.5) == pytest.approx(2.0)
    assert between(0.5, 1.5) == pytest.approx(3.0)
    assert between(1.5, 2.2) == pytest.approx(2.6)
    assert between(-1.0, 9.0) == pytest.approx(5.0)


def test_a_plan_and_a_replay_make_the_same_decision():
    random = np.random.default_rng(11)
    many = 400
    current, now, coming, stay, most = (random.integers(0, 30, many).astype(float) for _ in range(5))
    ready = np.minimum(current, random.integers(0, 30, many))
    now[random.random(many) < 0.2] = np.nan
    cooling, shrunk = random.random(many) < 0.3, random.random(many) < 0.3
    result = decide(
        current=current, ready=ready, now=now, coming=coming, stay=stay, floor=2, top=25, most=most, cooling=cooling,
        shrunk=shrunk,
    )  # fmt: skip
    for row in range(many):
        one = target(
            current=int(current[row]), floor=2, ceiling=25, need_now=None if np.isnan(now[row]) else int(now[row]),
            need_forecast=int(coming[row]), need_survivors=int(stay[row]), most=int(most[row]), ready=int(ready[row]),
            cooling=bool(cooling[row]), shrunk=bool(shrunk[row]),
        )  # fmt: skip
        assert one.replicas == result[row]
        if result[row] < current[row]:
            assert not np.isnan(now[row])
            assert result[row] >= min(stay[row], current[row])
            assert not cooling[row]


@pytest.mark.slow
def test_the_rule_of_a_history_is_that_of_its_replay():
    values = _wave(6.0)
    times = START + 600.0 * np.arange(values.size)
    result = best_rule(times, values, timedelta(minutes=10), FIVE)
    assert result == RULES[score.choose_policy(build_workload(_trace(values)), FIVE)[1][-1]]
    assert best_rule(times[:100], values[:100], timedelta(minutes=10), FIVE) == DEFAULT_RULE


def _shadow(minutes, cheap_waits):
    """Two lanes: the first is a little cheaper and lets ``cheap_waits`` of 60 requests a minute wait."""
    billed = np.tile([1.0, 1.05], (minutes, 1))
    waiting = np.stack([cheap_waits, np.zeros(minutes)], axis=1)
    return Run(0, billed, billed, waiting, np.full(minutes, 60.0), np.zeros(2))


def test_the_cheapest_rule_that_lets_few_requests_wait_is_chosen_from_the_past_alone():
    minutes = 6 * 1440
    flat = _flat(np.ones(minutes))
    calm = choose_rules(flat, _shadow(minutes, np.full(minutes, 0.1)))
    assert (calm == 0).all()
    waits = np.full(minutes, 0.1)
    waits[4 * 1440 :] = 6.0
    chosen = choose_rules(flat, _shadow(minutes, waits))
    assert (chosen[: 4 * 1440 + 60] == 0).all()
    assert chosen[-1] == 1


def test_few_long_waits_weigh_more_than_as_many_short_ones():
    minutes = 4 * 1440
    flat, spread = _flat(np.ones(minutes)), np.full(minutes, 0.15)
    burst = np.zeros(minutes)
    burst[1440 : 1440 + 30] = spread.sum() / 30.0
    assert choose_rules(flat, _shadow(minutes, spread))[-1] == 0
    assert choose_rules(flat, _shadow(minutes, burst))[-1] == 1


def test_a_collapse_is_rejected_for_an_hour_and_then_accepted():
    values = np.full(600, 50.0)
    values[300:320] = 0.5
    kept = drop_collapses(values, 144)
    assert np.isnan(kept[300:306]).all()
    assert (kept[306:320] == 0.5).all()
    assert kept[320] == 50.0
    assert fill_gaps(kept, 144)[303] == 50.0


@pytest.mark.slow
def test_constant_load_is_kept_below_the_goal_with_rare_reversals():
    random = np.random.default_rng(5)
    values = 30.0 * (1.0 + random.uniform(-0.02, 0.02, 8 * 144))
    result = score.replay([_trace(values)], startup=FIVE).traces[0]
    assert result.ours.requests_waiting_over_2s_ratio <= score.WAITING_GOAL
    # the noise of minutes alone turns a reactive fleet many times a day
    assert result.ours.reversals_within_30min < 0.1 * result.best("keda").reversals_within_30min


@pytest.mark.slow
def test_missing_values_never_scale_in():
    values = _wave(7.0)
    made = build_workload(_trace(values))
    gap = slice(5 * 144 + 40, 5 * 144 + 90)
    values[gap] = np.nan
    gapped = build_workload(_trace(values))
    assert (~gapped.seen).any()
    ours, _ = score.choose_policy(gapped, FIVE)
    strategies = [ours, UtilizationPolicy(np.array([0.6])), ConcurrencyPolicy(np.array([0.7]))]
    run = simulate(gapped, strategies, FIVE, made.first)
    unseen = np.flatnonzero(~gapped.seen) - made.first
    # a desire from before the gap may still come true
    held = run.replicas[unseen[0] + 6 : unseen[-1] + 1]
    assert (np.diff(held, axis=0) >= 0).all()


def test_reversals_count_at_constant_load_alone():
    load = np.full(120, 10.0)
    fleet = np.full(120, 5.0)
    fleet[50:60] = 6.0
    assert reversals(fleet, load) == 1
    moving = np.linspace(5.0, 20.0, 120)
    assert reversals(fleet, moving) == 0
    assert reversals(fleet, moving, steady=None) == 1
    fleet[50:95] = 6.0
    assert reversals(fleet, load) == 0


def test_a_fleet_at_zero_reports_its_cold_start_time():
    load = np.zeros(40)
    load[20:] = 1.0
    flat = replace(_flat(load + 1e-12), load=load)
    lane = ConcurrencyPolicy(np.array([0.7]), name="knative", least=0.0, window_seconds=60.0)
    run = simulate(flat, [lane], FIVE, 0)
    assert run.replicas[15, 0] == 0.0
    assert run.cold_seconds[0] == FIVE.total_seconds()
    assert run.waiting[20, 0] == pytest.approx(60.0, abs=2.0)
    assert run.replicas[30, 0] >= 1.0


def test_a_saturated_fleet_grows_by_utilization_and_an_idle_one_shrinks():
    loop = UtilizationPolicy(np.array([0.5]))

    def state(rate, ready=4.0, queue=0.0):
        served, of = np.array([[min(rate, ready)]]), np.array([[ready]])
        return FleetState(np.array([[5]]), np.array([[rate]]), of, of, served, np.array([[queue]]), 1.0)

    assert loop.desired_replicas(state(4.0, queue=9.0)) == 8.0
    assert loop.desired_replicas(state(1.0)) == 2.0
    assert loop.desired_replicas(state(2.1)) == 4.0  # within the tolerance
    assert loop.desired_replicas(state(np.nan)) == 4.0


def test_stretches_side_by_side_give_the_result_of_one_run():
    made = build_workload(_trace(_wave(7.0)))
    lanes = [ConcurrencyPolicy(np.array([0.6, 0.9])), UtilizationPolicy(np.array([0.7]))]
    whole = simulate(made, lanes, FIVE, made.first - SETTLE_MINUTES)
    parts = simulate(made, lanes, FIVE, made.first, stretch=timedelta(days=1))
    np.testing.assert_allclose(parts.replica_minutes(made.first), whole.replica_minutes(made.first), rtol=0.002)
    np.testing.assert_allclose(parts.waiting_ratio(made.first), whole.waiting_ratio(made.first), atol=2e-4)


def test_an_hourly_forecast_grows_at_the_hour_and_uses_days_before():
    jobs = np.where(np.arange(8 * 144) % 144 // 6 == 9, 80.0, 20.0)
    made = build_workload(_trace(jobs))
    hours = hourly_forecast(made)
    assert (hours[:24] == 0).all()
    assert hours[6 * 24 + 9] > 2.0 * hours[6 * 24 + 7]
    policy, targets = hourly_policy(made, 5)
    lane, day = list(targets).index(0.8), 6 * 1440
    assert policy.needs[day + 9 * 60 - 5, lane] > policy.needs[day + 9 * 60 - 6, lane]


def _scored(name, setting, cost, waits):
    return StrategyScore(name, setting, cost, waits, 0.0, 0)


def test_rivals_have_the_best_setting_of_each_trace():
    ours = _scored("outrider", None, 0.5, 0.001)
    keda = [_scored("keda", 0.9, 0.4, 0.02), _scored("keda", 0.7, 0.6, 0.004), _scored("keda", 0.5, 0.8, 0.0)]
    hpa = [_scored("hpa", 0.9, 0.5, 0.03), _scored("hpa", 0.2, 0.9, 0.006)]
    trace = TraceReplay("t", ours, 0.4, (ours, *keda, *hpa), 0)
    shown = trace.as_dict()
    assert (shown["keda_ratio"], shown["rival_settings"]["keda"]) == (0.6, 0.7)
    assert shown["hpa_ratio"] is None
    assert trace.shown("hpa").setting == 0.2


def test_the_timetable_knows_only_the_days_before():
    values = np.concatenate([np.full(144, level) for level in (10.0, 20.0, 40.0, 40.0, 80.0, 40.0)])
    made = build_workload(_trace(values))
    timetable, headrooms = cron(made, 5)
    lane = list(headrooms).index(1.0)
    day = timetable.needs[:, lane] * made.per_replica
    # the highest of sixty noisy minutes
    assert 40.0 < day[4 * 1440 + 300] < 50.0
    assert 80.0 < day[5 * 1440 + 300] < 100.0


@pytest.mark.slow
def test_our_policy_meets_the_goal_for_less_than_static_peak(replayed):
    result = replayed.traces[0]
    assert result.ours.requests_waiting_over_2s_ratio <= score.WAITING_GOAL
    assert result.oracle_ratio <= result.ours.gpu_hours_ratio < 1.0
    static = result.rival("static", None)
    assert static.gpu_hours_ratio == pytest.approx(1.0)
    assert static.requests_waiting_over_2s_ratio == 0.0
    assert static_peak(build_workload(_trace(_wave(7.0)))).lanes == 1


@pytest.mark.slow
def test_the_result_has_the_documented_keys(replayed):
    shown = replayed.as_dict()
    row = shown["traces"][0]
    agreed = {"name", "gpu_hours_ratio", "requests_waiting_over_2s_ratio", "oracle_ratio"}
    assert agreed | {"keda_ratio", "hpa_ratio", "aws_ratio", "reversals_within_30min"} <= row.keys()
    assert shown["holds"] is True
    best = row["rival_settings"]["keda"]
    costs = [each for each in replayed.traces[0].strategies if each.name == "keda" and each.setting == best]
    assert row["keda_ratio"] == pytest.approx(costs[0].gpu_hours_ratio)
    assert row["keda_waiting_over_2s_ratio"] == pytest.approx(costs[0].requests_waiting_over_2s_ratio)


@pytest.mark.slow
def test_a_replay_is_drawn(replayed):
    drawn = figure.svg(replayed.traces[0], FIVE)
    assert drawn.startswith("<svg")
    assert drawn.count("<polyline") == 2
    assert "of requests wait over 2 s" in drawn
    assert "的请求等待超过 2 秒" in figure.svg(replayed.traces[0], FIVE, "zh")
