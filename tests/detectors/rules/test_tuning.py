"""Threshold and waiting time from feedback: the backtest equals the cycle, and proposals keep useful pages."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from alerts.state import machine as alert_state
from detectors.rules.rule_backtest import JudgedAlert, RuleBacktest, window_of
from detectors.rules.threshold import RuleDetector
from detectors.rules.tunable_threshold import tunable_threshold_of
from detectors.rules.tuning import LEAST_VERDICTS, Proposal, ProposalReason, Setting, propose
from outrider.errors import UsageError
from outrider.model import (
    AlertState,
    CellStatus,
    EntityKind,
    EntityRef,
    NoVerdict,
    Priority,
    SignalKey,
    TimeRange,
    Window,
)
from outrider.topology import Topology
from outrider.vocabulary.rules import AbsentPolicy, Rule

T0 = datetime(2026, 5, 4, tzinfo=UTC)
STEP = timedelta(seconds=15)
CACHE, WAITING = SignalKey("engine_kv_cache_usage_ratio"), SignalKey("engine_requests_waiting")
REPLICAS = tuple(EntityRef("c", EntityKind.REPLICA, "llm", f"chat-{number}") for number in range(3))
EXPR = "last(engine_kv_cache_usage_ratio) > 0.9 and last(engine_requests_waiting) > 0"
MINUTE = timedelta(minutes=1)


class Stored:
    """Values on a grid, read like those of a store."""

    def __init__(self, cache: np.ndarray, waiting: np.ndarray | None = None) -> None:
        queue = np.ones_like(cache) if waiting is None else waiting
        self.values = np.stack([cache, queue], axis=2)
        self.times = T0.timestamp() + STEP.total_seconds() * np.arange(cache.shape[1])
        self.span = TimeRange(T0, T0 + cache.shape[1] * STEP)
        self.entities = REPLICAS[: cache.shape[0]]

    def read(self, start: datetime, end: datetime) -> Window:
        inside = (self.times >= start.timestamp()) & (self.times < end.timestamp())
        values = self.values[:, inside]
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        return Window(EntityKind.REPLICA, self.entities, self.times[inside], (CACHE, WAITING), values, status, STEP)


def run_cycles(stored: Stored, rule: Rule) -> dict[EntityRef, list[datetime]]:
    """Times at which alerts fire in the cycle, with its detector and state machine."""
    detector, active, fired = RuleDetector(rule), (), {entity: [] for entity in stored.entities}
    state = detector.initial()
    context = alert_state.service_context((), {}, {}, lambda _: ())
    for at in stored.times:
        now = datetime.fromtimestamp(at, tz=UTC)
        window = stored.read(now - detector.window + STEP / 2, now + STEP / 2)
        state, verdicts = detector.detect(state, window, Topology.build(()), now)
        before = {alert.fingerprint for alert in active if alert.state is AlertState.FIRING}
        after = alert_state.advance(active, verdicts, None, [rule], context, now)
        for alert in after:
            if alert.state is AlertState.FIRING and alert.fingerprint not in before:
                fired[alert.entity].append(now)
        active = tuple(alert for alert in after if alert.state is not AlertState.RESOLVED)
    return fired


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"absent": AbsentPolicy.FIRE},
        {"absent": AbsentPolicy.RESOLVE, "resolve_after": timedelta(seconds=45)},
    ],
    ids=["keep", "fire", "resolve"],
)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "expr",
    [
        EXPR,
        'mean(engine_kv_cache_usage_ratio, "1m") > 0.9 or last(engine_requests_waiting) > 3',
        "last(engine_kv_cache_usage_ratio) < 0.3 and (last(engine_requests_waiting) < 2 or present(engine_up))",
        "0.2 * last(engine_kv_cache_usage_ratio) >= 0.17",
        "not last(engine_kv_cache_usage_ratio) > 0.2",
    ],
)
def test_the_backtest_fires_like_the_cycle(expr: str, seed: int, policy: dict[str, Any]) -> None:
    rng = np.random.default_rng(seed)
    steps = 160
    cache = np.clip(0.8 + np.cumsum(rng.normal(0, 0.07, (3, steps)), axis=1) % 0.4 - 0.2, 0, 1)
    waiting = rng.integers(0, 5, (3, steps)).astype(float)
    for matrix in (cache, waiting):  # single gaps, and outages
        matrix[rng.random((3, steps)) < 0.05] = np.nan
        begin = int(rng.integers(20, 120))
        matrix[int(rng.integers(3)), begin : begin + 12] = np.nan
    stored = Stored(cache, waiting)
    wait, clear = (timedelta(seconds=int(rng.choice([0, 15, 60, 90]))) for _ in range(2))
    rule = Rule("r", EntityKind.REPLICA, expr, priority=Priority.P2, wait=wait, clear=clear, **policy)
    dial = tunable_threshold_of("r", expr)
    thresholds = [dial.threshold] * 2
    waits = [wait, wait + MINUTE]
    if dial.threshold is not None:
        thresholds.append(dial.beyond(dial.threshold))
        waits.append(wait)
    numbers = np.array([np.nan if one is None else one for one in thresholds])
    seconds = np.array([one.total_seconds() for one in waits])
    replayed = RuleBacktest(dial, numbers, seconds, rule, stored.entities, ())
    for start in range(0, steps, 50):  # in pieces, each with its past
        begin = T0 + start * STEP
        replayed.feed(stored.read(begin - window_of(dial), begin + 50 * STEP), begin)
    for place, (threshold, longer) in enumerate(zip(thresholds, waits, strict=True)):
        turned = expr if threshold is None else dial.turned(threshold)
        live = run_cycles(stored, replace(rule, expr=turned, wait=longer))
        assert replayed.alarms[place] == sum(len(times) for times in live.values()), (turned, longer)


def test_the_threshold_of_the_first_comparison_is_tunable() -> None:
    dial = tunable_threshold_of("r", EXPR)
    assert (dial.threshold, dial.symbol) == (0.9, ">")
    assert dial.turned(0.955) == EXPR.replace("0.9", "0.955")
    assert tunable_threshold_of("r", '1 - mean(svc_success_ratio, "5m") < -0.5').turned(-1) == (
        '1 - mean(svc_success_ratio, "5m") < -1'
    )
    for without in (
        "last(engine_kv_cache_usage_ratio) > greatest(0.9, last(engine_requests_waiting))",
        "not last(engine_kv_cache_usage_ratio) > 0.9",
        "not present(engine_up) or last(engine_requests_waiting) > 3",
        "last(engine_up) == 0",
        "0.9 < last(engine_kv_cache_usage_ratio)",
    ):
        assert tunable_threshold_of("r", without).threshold is None
    with pytest.raises(UsageError, match="there is no signal engine_upp"):
        tunable_threshold_of("r", "last(engine_upp) > 1")


@pytest.mark.parametrize(
    ("symbol", "level", "beyond"),
    [(">", 0.9, 0.901), (">", 0.95512, 0.956), (">", 12345.0, 12400.0), ("<", 0.3, 0.299), (">", -2.0, -1.99),
     (">", 0.0, 0.001), ("<", 0.0, -0.001)],
)  # fmt: skip
def test_the_next_threshold_is_just_beyond_a_level(symbol: str, level: float, beyond: float) -> None:
    dial = tunable_threshold_of("r", f"last(engine_kv_cache_usage_ratio) {symbol} 0.5")
    assert dial.beyond(level) == pytest.approx(beyond, rel=1e-12)


# --- the choice -----------------------------------------------------------------------------------

USEFUL_AT, USELESS_AT = 0.98, 0.93


def fleet(
    useful: int = 6,
    useless: int = 8,
    *,
    level: float = USELESS_AT,
    lasts: int = 20,
    useful_lasts: int = 40,
    priority: Priority = Priority.P2,
    wait: timedelta = MINUTE,
) -> tuple[Rule, list[JudgedAlert], Stored]:
    """One quiet replica with plateaus 40 min apart; useful ones are higher."""
    count = useful + useless
    cache = np.full((2, 160 * (count + 1)), 0.5)
    judged = []
    for number in range(count):
        is_useful = number % 2 == 0 if number < 2 * min(useful, useless) else useful > useless
        begin, long = 160 * number + 60, useful_lasts if is_useful else lasts
        cache[0, begin : begin + long] = (USEFUL_AT if is_useful else level) - 0.0001 * number
        start = T0 + begin * STEP
        judged.append(JudgedAlert(f"f{number}", REPLICAS[0], priority, start, start + long * STEP, is_useful))
    rule = Rule("r", EntityKind.REPLICA, EXPR, priority=priority, wait=wait, clear=MINUTE)
    return rule, judged, Stored(cache)


def proposed(rule: Rule, judged: list[JudgedAlert], stored: Stored, **more: object) -> Proposal:
    return propose(rule, judged, stored.read, stored.entities, stored.span, **more)  # type: ignore[arg-type]


def test_a_proposed_threshold_drops_useless_and_keeps_useful_alerts() -> None:
    proposal = proposed(*fleet())
    assert proposal.reason is ProposalReason.BETTER
    assert proposal.now is not None
    assert proposal.best is not None
    assert (proposal.now.kept_useful, proposal.now.kept_useless, proposal.now.dropped_useless) == (6, 8, 0)
    assert (proposal.best.kept_useful, proposal.best.dropped_useful, proposal.best.dropped_useless) == (6, 0, 8)
    assert proposal.best.delay_most_seconds == 0.0
    assert proposal.best.setting == Setting(0.93, MINUTE), "the nearest that drops them all"
    assert proposal.expression == EXPR.replace("0.9", "0.93")
    assert proposal.now.alerts_per_day == pytest.approx(14 / proposal.days)
    assert proposal.best.alerts_per_day == pytest.approx(6 / proposal.days)
    assert proposal.best.dropped_useless_interval[0] == pytest.approx(0.6756, abs=1e-3)
    assert len(proposal.candidates) >= 5
    assert proposal.unchecked == ()


def test_a_waiting_time_is_proposed_if_useless_alerts_are_only_shorter() -> None:
    proposal = proposed(*fleet(level=USEFUL_AT, lasts=10))
    assert proposal.best is not None
    assert proposal.best.setting.threshold == 0.9
    assert proposal.best.setting.wait == 5 * MINUTE
    assert (proposal.best.kept_useful, proposal.best.dropped_useless) == (6, 8)
    assert proposal.best.delay_median_seconds == 240.0
    assert proposal.expression == EXPR


@pytest.mark.slow
def test_a_useful_page_is_never_dropped() -> None:
    rule, judged, stored = fleet(useful=9, useless=9, lasts=40, priority=Priority.P1)
    stored.values[0, 60:100, 0] = 0.91  # one useful page that went less far than what was useless
    proposal = proposed(rule, judged, stored)
    assert proposal.reason is ProposalReason.DROPS_A_PAGE
    assert proposal.best is None
    assert any(one.dropped_pages for one in proposal.candidates)
    softer = [replace(one, priority=Priority.P2) for one in judged]
    proposal = proposed(replace(rule, priority=Priority.P2), softer, stored)
    assert proposal.best is not None
    dropped = (proposal.best.dropped_useful, proposal.best.dropped_useless)
    assert dropped == (1, 9), "for P2, one useful alert may go for five useless ones"


def test_a_useful_page_is_delayed_by_two_minutes_at_most() -> None:
    proposal = proposed(*fleet(level=USEFUL_AT, lasts=10, priority=Priority.P0))
    assert proposal.reason is ProposalReason.DROPS_A_PAGE
    assert max(one.late_pages for one in proposal.candidates) == 6


@pytest.mark.parametrize(
    ("useful", "useless", "reason"),
    [
        (LEAST_VERDICTS - 5, 4, ProposalReason.TOO_FEW_VERDICTS),
        (9, 2, ProposalReason.NOTHING_USELESS),
        (0, 11, ProposalReason.NOTHING_USEFUL),
    ],
)
def test_too_little_feedback_gives_no_proposal(useful: int, useless: int, reason: ProposalReason) -> None:
    proposal = proposed(*fleet(useful, useless))
    assert (proposal.reason, proposal.best, proposal.judged) == (reason, None, useful + useless)


def test_one_incident_counts_once() -> None:
    rule, judged, stored = fleet()
    storm = [replace(one, occasion="inc-1") for one in judged]
    assert proposed(rule, storm, stored).reason is ProposalReason.TOO_FEW_VERDICTS


@pytest.mark.slow
def test_effects_without_stored_values_are_unknown() -> None:
    rule, judged, stored = fleet()
    pages = [replace(one, priority=Priority.P1) if number == 0 else one for number, one in enumerate(judged)]
    late = TimeRange(pages[0].ends_at, stored.span.end)
    proposal = propose(rule, pages, stored.read, stored.entities, late)
    assert (proposal.reason, proposal.unchecked) == (ProposalReason.PAGE_NOT_CHECKED, (pages[0],))
    stored.values[0, 60:100, 0] = 0.5  # the values tell of no alert there
    proposal = proposed(rule, pages, stored)
    assert (proposal.reason, proposal.unchecked) == (ProposalReason.PAGE_NOT_CHECKED, (pages[0],))
    stored.values[:, :, 0] = 0.5
    assert proposed(rule, judged, stored).reason is ProposalReason.NOT_REPRODUCED


def test_values_stored_with_feedback_outlive_the_store() -> None:
    rule, judged, stored = fleet(priority=Priority.P1)
    named = [replace(one, id=one.fingerprint) for one in judged]
    past = timedelta(minutes=6)
    kept = {one.id: stored.read(one.starts_at - past, one.ends_at) for one in named}
    late = TimeRange(stored.span.end - timedelta(hours=1), stored.span.end)
    proposal = propose(rule, named, stored.read, stored.entities, late, kept=kept)
    assert (proposal.reason, proposal.unchecked) == (ProposalReason.BETTER, ())
    assert proposal.best is not None
    best = proposal.best
    assert (best.setting, best.kept_useful, best.dropped_useless) == (Setting(0.93, MINUTE), 6, 8)
    without = propose(rule, named, stored.read, stored.entities, late)
    assert without.reason is ProposalReason.PAGE_NOT_CHECKED


@pytest.mark.slow
def test_a_user_setting_is_backtested() -> None:
    rule, judged, stored = fleet()
    good = proposed(rule, judged, stored, tried=[Setting(0.95, MINUTE)])
    assert (good.reason, good.best and good.best.setting.threshold) == (ProposalReason.BETTER, 0.95)
    bad = proposed(rule, judged, stored, tried=[Setting(0.99, MINUTE)])
    assert (bad.reason, bad.candidates[0].dropped_useful) == (ProposalReason.NONE_BETTER, 6)


def test_a_rule_without_an_expression_has_nothing_to_replay() -> None:
    rule, judged, stored = fleet()
    by_fault = replace(rule, expr=None, faults=("gpu-lost",))
    assert proposed(by_fault, judged, stored).reason is ProposalReason.NOT_OVER_VALUES


def test_a_no_verdict_is_equal_in_cycle_and_backtest() -> None:
    """The comparison of backtest and cycle above needs gaps."""
    stored = Stored(np.full((1, 40), np.nan))
    rule = Rule("r", EntityKind.REPLICA, EXPR)
    _, verdicts = RuleDetector(rule).detect(
        RuleDetector(rule).initial(), stored.read(T0, T0 + 40 * STEP), Topology.build(()), T0 + 39 * STEP
    )
    assert isinstance(verdicts[0], NoVerdict)
    replayed = RuleBacktest(
        tunable_threshold_of("r", EXPR), np.array([0.9]), np.array([0.0]), rule, stored.entities, ()
    )
    replayed.feed(stored.read(T0, T0 + 40 * STEP), T0)
    assert replayed.alarms.sum() == 0
