from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.rules.files import load_rules
from detectors.rules.expressions import compile_expression
from detectors.rules.threshold import compile_rules
from outrider.errors import UsageError
from outrider.model import CellStatus, EntityKind, EntityRef, Finding, NoVerdictReason, Priority, SignalKey, Window
from outrider.topology import Topology
from outrider.vocabulary.catalog import signal
from outrider.vocabulary.rules import AbsentPolicy, Rule

R, S = EntityKind.REPLICA, EntityKind.SERVICE


def rule(expr, kind=R, **more):
    return Rule(name="a-rule", kind=kind, expr=expr, **more)


@pytest.fixture
def find(window_of, findings_of):
    def run(expr, rows, kind=R, *, statuses=None, verdicts=None, **more):
        (detector,) = compile_rules([rule(expr, kind, **more)])
        return findings_of(detector, window_of(kind, rows, statuses=statuses), verdicts=verdicts)

    return run


def names(findings):
    return [item.entity.name for item in findings]


def test_a_comparison_reports_observed_and_expected_values(find):
    rows = {"a": {"engine_requests_waiting": [1.0, 12.0]}, "b": {"engine_requests_waiting": [1.0, 9.0]}}
    (finding,) = find("last(engine_requests_waiting) > 10", rows)
    assert (finding.entity.name, finding.detector, finding.observed) == ("a", "rule:a-rule", 12.0)
    assert (finding.expected.low, finding.expected.high) == (None, 10.0)
    assert (finding.fault, finding.severity) == (None, Priority.P2)


def test_a_finding_has_fault_and_priority_of_its_rule(find):
    rows = {"a": {"engine_requests_waiting": [12.0]}}
    (finding,) = find("engine_requests_waiting > 10", rows, fault="kv-pressure")
    assert (finding.fault, finding.severity) == ("kv-pressure", Priority.P2)
    (finding,) = find("engine_requests_waiting > 10", rows, fault="kv-pressure", priority=Priority.P0)
    assert finding.severity is Priority.P0


def test_rules_without_an_expression_are_left_out():
    assert compile_rules([Rule(name="x", kind=R, faults=("engine-dead",))]) == ()


@pytest.mark.parametrize(
    ("expr", "holds"),
    [
        ('mean(engine_requests_waiting, "10s") == 15', True),
        ('max(engine_requests_waiting, "1m") == 20 and min(engine_requests_waiting, "1m") == 1', True),
        ('sum(engine_generation_tokens_total, "1m") == 60', True),
        ('rate(engine_generation_tokens_total, "1m") == 3', True),
        ("engine_requests_waiting / 2 - 4 * 2 == 2", True),
        ("-engine_requests_waiting < -19", True),
        ("greatest(engine_requests_waiting, 30) >= 30", True),
        ("engine_requests_waiting > 10 or engine_requests_running > 10", True),
        ("not engine_requests_waiting > 10", False),
        ("present(engine_requests_waiting) and not present(engine_requests_running)", True),
        ("engine_requests_waiting != 20", False),
    ],
)
def test_expressions_are_evaluated(find, expr, holds):
    rows = {
        "a": {
            "engine_requests_waiting": [1.0, 2.0, 10.0, 20.0],
            "engine_generation_tokens_total": [None, 20.0, 20.0, 20.0],
        }
    }
    assert bool(find(expr, rows)) is holds


def ttft(counts):
    """A service with these requests per scrape, by the upper bound of their bucket in seconds."""
    bounds = signal("svc_ttft_seconds").bounds
    row = {f"svc_ttft_seconds#{i}": [0.0] * 3 for i in range(len(bounds) + 1)}
    for bound, count in counts.items():
        row[f"svc_ttft_seconds#{bounds.index(bound)}"] = [float(count)] * 3
    return {"s": row}


def test_a_quantile_is_merged_from_buckets(find):
    (finding,) = find('quantile(0.99, svc_ttft_seconds, "5m") > 2', ttft({5.0: 40}), S)
    assert 2.5 < finding.observed <= 5.0
    verdicts = []
    assert find('quantile(0.99, svc_ttft_seconds, "5m") > 2', ttft({}), S, verdicts=verdicts) == []
    assert verdicts == []


@pytest.mark.parametrize(("requests", "holds"), [(33, False), (34, True)])
def test_a_quantile_of_too_few_requests_is_undefined_and_no_gap(find, requests, holds):
    verdicts = []
    rows = ttft({5.0: requests})  # in each of three scrapes
    assert bool(find('quantile(0.99, svc_ttft_seconds, "5m") > 2', rows, S, verdicts=verdicts)) is holds
    assert bool(find('quantile(0.99, svc_ttft_seconds, "5m") < 10', rows, S, verdicts=verdicts)) is holds
    assert verdicts == []


@pytest.mark.parametrize(("fewest", "holds"), [(99, True), (100, False)])
def test_a_rule_may_set_the_fewest_requests_of_a_quantile(find, fewest, holds):
    rows = ttft({5.0: 33})
    assert bool(find(f'quantile(0.99, svc_ttft_seconds, "5m", {fewest}) > 2', rows, S)) is holds


@pytest.mark.parametrize(
    ("comparison", "holds"),
    [
        ('quantile(0.99, svc_ttft_seconds, "5m") > 1', True),
        ('quantile(0.99, svc_ttft_seconds, "5m") > 2', False),  # interpolation between 1 and 2.5 gives 2.49
        ('2 < quantile(0.99, svc_ttft_seconds, "5m")', False),
        ('quantile(0.99, svc_ttft_seconds, "5m") < 2.5', False),
        ('quantile(0.99, svc_ttft_seconds, "5m") <= 2.5', True),
        ('quantile(0.99, svc_ttft_seconds, "5m") < 3', True),
        ('3 > quantile(0.99, svc_ttft_seconds, "5m")', True),
    ],
)
def test_a_comparison_holds_if_the_whole_bucket_fulfils_it(find, comparison, holds):
    assert bool(find(comparison, ttft({2.5: 100}), S)) is holds


def test_the_first_comparison_is_the_subject_of_the_rule(find):
    rows = {"s": {"svc_failed_total": [10.0] * 3, "svc_requests_total": [100.0] * 3}}
    expr = """1 - sum(svc_failed_total, "5m") / sum(svc_requests_total, "5m") < 0.99
              and sum(svc_requests_total, "5m") >= 20"""
    (finding,) = find(expr, rows, S)
    assert finding.observed == pytest.approx(0.9)
    assert (finding.expected.low, finding.expected.high) == (0.99, None)


def test_no_events_are_false_and_not_a_gap(find):
    rows = {"s": {"svc_failed_total": [0.0] * 3, "svc_requests_total": [0.0] * 3}}
    verdicts = []
    ratio = 'sum(svc_failed_total, "5m") / sum(svc_requests_total, "5m")'
    assert find(f"{ratio} > 0.01", rows, S, verdicts=verdicts) == []
    assert find(f"not {ratio} > 0.01", rows, S, verdicts=verdicts) == []
    assert verdicts == []


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (CellStatus.ABSENT, NoVerdictReason.NO_VALUES),
        (CellStatus.STALE, NoVerdictReason.UNTRUSTED_VALUES),
        (CellStatus.RESET, NoVerdictReason.UNTRUSTED_VALUES),
        (CellStatus.UNTRUSTED, NoVerdictReason.UNTRUSTED_VALUES),
    ],
)
@pytest.mark.parametrize("expr", ["{} < 10", "not {} >= 10", "{} < 10 or {} > 20", "{} < 10 and 1 < 2"])
def test_missing_values_give_no_verdict(find, status, reason, expr):
    rows = {"a": {"engine_requests_waiting": [1.0] * 3}, "b": {"engine_requests_waiting": [1.0] * 3}}
    statuses = {("a", "engine_requests_waiting", column): status for column in range(3)}
    verdicts = []
    text = expr.replace("{}", "last(engine_requests_waiting)")
    assert names(find(text, rows, statuses=statuses, verdicts=verdicts)) == ["b"]
    assert [(item.entity.name, item.reason) for item in verdicts] == [("a", reason)]


def test_a_false_condition_decides_despite_missing_values(find):
    verdicts = []
    rows = {"a": {"engine_requests_running": [1.0]}}
    assert find("engine_requests_waiting > 3 and engine_requests_running > 5", rows, verdicts=verdicts) == []
    assert verdicts == []


def test_old_values_give_no_verdict(find):
    verdicts = []
    rows = {"a": {"engine_requests_waiting": [50.0] + [None] * 20}, "b": {"engine_requests_waiting": [1.0] * 21}}
    assert find('max(engine_requests_waiting, "5m") > 10', rows, verdicts=verdicts) == []
    assert names(verdicts) == ["a"]


def test_one_no_verdict_covers_all_entities(find):
    verdicts = []
    find("engine_requests_waiting > 3", {"a": {"engine_up": [1.0]}, "b": {"engine_up": [1.0]}}, verdicts=verdicts)
    assert [item.entity for item in verdicts] == [None]


def absent_cycles(columns, *, cycles, leave=False, window_of):
    """The verdicts on one entity in each cycle of 5 s. It has the given values, then none, and may leave the window."""
    (detector,) = compile_rules([rule("engine_requests_waiting > 10", absent=AbsentPolicy.FIRE)])
    state, result = detector.initial(), []
    for count in range(1, cycles + 1):
        first = max(0, count - 20)
        values = [*columns, *[None] * count][first:count]
        rows = {"b": {"engine_up": values}}
        if not leave or any(value is not None for value in values):
            rows["a"] = {"engine_requests_waiting": values}
        window = window_of(R, rows, start=1e9 + 5.0 * first)
        state, verdicts = detector.detect(
            state, window, Topology.build(()), datetime.fromtimestamp(window.times[-1], tz=UTC)
        )
        result.append([item for item in verdicts if item.entity is None or item.entity.name == "a"])
    return result


@pytest.mark.parametrize("leave", [False, True], ids=["in the window", "out of the window"])
def test_missing_values_fire_if_the_rule_demands_it(window_of, leave):
    cycles = absent_cycles([1.0, 1.0], cycles=60, leave=leave, window_of=window_of)
    found = [[item for item in cycle if isinstance(item, Finding)] for cycle in cycles]
    first = next(number for number, cycle in enumerate(found) if cycle)
    assert 60 < 5 * first <= 135  # the last value describes the present for a minute, and may be missing for another
    assert all(found[first:])
    assert found[-1][0].evidence[0].text == "findings.rule_absent"
    assert found[-1][0].observed is None


def test_an_entity_that_never_had_values_is_not_absent(window_of):
    cycles = absent_cycles([], cycles=60, window_of=window_of)
    assert not any(isinstance(item, Finding) for cycle in cycles for item in cycle)


def test_a_condition_that_is_true_is_found_once_while_missing_values_fire_too(window_of):
    cycles = absent_cycles([20.0] * 8, cycles=60, window_of=window_of)
    found = [sum(isinstance(item, Finding) for item in cycle) for cycle in cycles]
    assert max(found) == 1
    assert found[0] == found[-1] == 1


@pytest.mark.parametrize(
    ("expr", "position", "expected_text"),
    [
        ("last(engine_requests_waitin) > 10", 6, "there is no signal engine_requests_waitin"),
        ("engine_requests_waiting", 1, "expected a comparison"),
        ("engine_requests_waiting > > 10", 27, "cannot be read"),
        ("1 < engine_requests_waiting < 10", 1, "cannot be chained"),
        ('sum(engine_requests_waiting, "5m") > 1', 1, "sum needs a counter"),
        ('mean(engine_requests_waiting, "5 min") > 1', 31, "expected a duration"),
        ('mean(engine_requests_waiting, "0m") > 1', 31, "expected a duration"),
        ("last(engine_ttft_seconds) > 1", 1, "is a histogram"),
        ('quantile(99, engine_ttft_seconds, "5m") > 1', 10, "expected a quantile"),
        ('quantile(0.9, engine_requests_waiting, "5m") > 1', 1, "is not a histogram"),
        ('quantile(0.9, engine_ttft_seconds, "5m", 0) > 1', 42, "expected a number of observations"),
        ("quantile(0.9, engine_ttft_seconds) > 1", 1, "found 2 arguments"),
        ("median(engine_requests_waiting) > 1", 1, "there is no function median"),
        ("mean(engine_requests_waiting) > 1", 1, "found 1 arguments"),
        ("last(x=engine_requests_waiting) > 1", 1, "named arguments"),
        ("present(engine_up) > 1", 1, "not a number"),
        ("engine_requests_waiting > True", 27, "expected a number"),
        ("__import__('os').system('ls') > 1", 1, "there is no function"),
        ("engine_requests_waiting.real > 1", 1, "expected a number"),
        ("[1][0] > 1", 1, "expected a number"),
        ("engine_requests_waiting in 1", 1, "expected one of"),
        ("engine_requests_waiting ** 2 > 1", 1, "expected a number"),
    ],
)
def test_errors_name_rule_position_and_expectation(expr, position, expected_text):
    with pytest.raises(UsageError) as raised:
        compile_rules([rule(expr)])
    assert raised.value.message.startswith(f"rule a-rule: position {position}: ")
    assert expected_text in raised.value.message


def test_a_misspelt_signal_gets_suggestions():
    with pytest.raises(UsageError) as raised:
        compile_rules([rule("engine_request_waiting > 1")])
    assert "engine_requests_waiting" in raised.value.hint


def test_span_and_columns_come_from_the_expression():
    compiled = compile_expression("r", 'sum(svc_failed_total, "1h") > 1 and mean(svc_queue_requests, "5m") > 1')
    assert compiled.span == timedelta(hours=1)
    assert compiled.keys == (SignalKey("svc_failed_total"), SignalKey("svc_queue_requests"))
    (short,) = compile_rules([rule("engine_requests_waiting > 1")])
    assert short.window >= timedelta(minutes=1)


cells = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=8)


@given(cells, st.floats(-1e6, 1e6))
def test_a_rule_and_its_opposite_never_both_hold(values, limit):
    (above,) = compile_rules([rule(f"engine_requests_waiting > {limit!r}")])
    (below,) = compile_rules([rule(f"not engine_requests_waiting > {limit!r}")])
    shape = (1, len(values), 1)
    matrix = np.array([np.nan if v is None else v for v in values]).reshape(shape)
    status = np.where(np.isnan(matrix), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    entity = EntityRef("lab", R, "default", "r0")
    times = 1e9 + 5.0 * np.arange(len(values))
    window = Window(R, (entity,), times, above.keys, matrix, status, timedelta(seconds=5))
    now = datetime.fromtimestamp(times[-1], tz=UTC)
    verdicts = [d.detect(d.initial(), window, Topology.build(()), now)[1] for d in (above, below)]
    findings = [any(isinstance(item, Finding) for item in items) for items in verdicts]
    known = any(v is not None for v in values)
    assert sum(findings) == (1 if known else 0)


def test_only_unreachable_scrape_targets_are_a_symptom(window_of, findings_of):
    (target_down,) = [one for one in compile_rules(load_rules()) if one.name == "rule:target-down"]
    rows = {"a": {"target_up": [1.0, 0.0]}, "b": {"target_up": [0.0, 1.0]}, "deployment": {"target_up": [None, None]}}
    no_verdicts = []
    findings = findings_of(target_down, window_of(EntityKind.WORKLOAD, rows), verdicts=no_verdicts)
    assert [one.entity.name for one in findings] == ["a"]
    assert no_verdicts == []


def test_only_a_lost_port_link_is_a_symptom(window_of, findings_of):
    (link_down,) = [one for one in compile_rules(load_rules()) if one.name == "rule:link-down"]
    rows = {"lost": {"hw_link_up": [1.0, 1.0, 0.0]}, "bare": {"hw_link_up": [0.0] * 3}, "up": {"hw_link_up": [1.0] * 3}}
    findings = findings_of(link_down, window_of(EntityKind.PORT, rows))
    assert [(one.entity.name, one.fault) for one in findings] == [("lost", None)]
