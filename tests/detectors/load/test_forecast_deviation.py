"""Traffic deviation from its forecast, and traffic drops."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest

from detectors.load import expected_traffic, forecast_deviation
from detectors.load.forecast_deviation import ForecastDeviationDetector
from detectors.load.gateway import GatewayDetector
from detectors.registry import DETECTORS
from detectors.statistics.baseline import SLOT_SECONDS, SLOTS
from outrider.model import (
    CellStatus,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Finding,
    ForecastView,
    NoVerdict,
    NoVerdictReason,
    Priority,
    SignalKey,
    Stage,
    Window,
)
from service.engine.detector_rollout import DetectorRollout, DetectorRun

START = 1_800_000_000.0
STEP = 15.0
KEYS = tuple(
    SignalKey(name)
    for name in ("svc_requests_per_second", "svc_requests_total", "svc_inflight_requests", "svc_ready_backends")
)
A, B = (EntityRef("lab", EntityKind.SERVICE, "d", name) for name in "ab")


def forecast(
    *entities, low=8.0, middle=10.0, high=13.0, made_at=START - 3600.0, signal=expected_traffic.RATE, step=600.0
):
    count = len(entities)
    arrays = (np.full(count, float(one)) for one in (step, made_at, low, middle, high))
    return ForecastView(entities, (signal,) * count, *arrays)


def run_cycles(rates, forecast_view, *, entities=(A,), state=None, start=START, events=(), detector=None, apart=STEP):
    """Runs one cycle every ``apart`` seconds; ``rates`` is (entities, cycles) or one row. Returns (state, verdicts)."""
    detector = detector or ForecastDeviationDetector()
    state, results = state or detector.initial(), []
    rates = np.atleast_2d(np.asarray(rates, dtype=np.float64))
    for cycle in range(rates.shape[1]):
        first = max(0, cycle + 1 - int(600 / apart))
        seen = rates[:, first : cycle + 1]
        values = np.stack([seen, seen * STEP, 0.0 * seen, 0.0 * seen + 4.0], axis=2)
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        times = start + apart * np.arange(first, cycle + 1)
        window = Window(
            EntityKind.SERVICE, entities, times, KEYS, values, status, timedelta(seconds=STEP), events,
            forecast_view(times[-1]) if callable(forecast_view) else forecast_view,
        )  # fmt: skip
        state, verdicts = detector.detect(state, window, None, datetime.fromtimestamp(times[-1], tz=UTC))
        results.append(verdicts)
    return state, results


def deviations(verdicts):
    return [one for one in verdicts if isinstance(one, Finding) and one.detector == forecast_deviation.NAME]


def minutes(count):
    return int(count * 60 / STEP)


def ramp(start, end, count):
    """A change so slow that no drop against the level before is detected."""
    return np.concatenate([np.full(minutes(10), start), np.linspace(start, end, minutes(count))])


def test_traffic_above_the_forecast_is_reported_once_and_does_not_page():
    _, results = run_cycles([20.0] * minutes(16), forecast(A))
    assert not any(deviations(verdicts) for verdicts in results[: minutes(9)])
    (finding,) = deviations(results[-1])
    assert (finding.fault, finding.severity, finding.entity) == (None, Priority.P3, A)
    assert finding.fingerprint.endswith("|above")
    assert [one.text for one in finding.evidence] == ["findings.traffic_above", "findings.traffic_was_forecast"]
    assert finding.evidence[1].arguments["high"] == "13"
    assert finding.evidence[1].arguments["minutes"] == "76"


def test_a_slow_fall_below_the_forecast_is_reported():
    _, results = run_cycles([*ramp(10.0, 4.0, 60), *[4.0] * minutes(10)], forecast(A))
    (finding,) = deviations(results[-1])
    assert finding.fingerprint.endswith("|below")
    assert (finding.observed, finding.expected.high) == (pytest.approx(4.0), None)


@pytest.mark.parametrize("rate", [7.0, 12.9, 13.5])  # outside the lowest quantile, inside, and outside the highest
def test_rates_near_the_median_are_not_reported_with_a_narrow_forecast(rate):
    assert not any(deviations(verdicts) for verdicts in run_cycles([rate] * minutes(20), forecast(A, middle=10.5))[1])


@pytest.mark.parametrize("apart", [40.0, 90.0, 200.0])
def test_cycles_slower_than_their_interval_are_judged_as_well(apart):
    _, results = run_cycles([20.0] * int(1500 / apart), forecast(A), apart=apart)
    assert deviations(results[-1])


def test_sparse_readings_give_no_ten_minute_level():
    rates = np.full(minutes(30), np.nan)
    rates[::20] = 20.0  # one each five minutes
    assert not any(deviations(verdicts) for verdicts in run_cycles(rates, forecast(A))[1])


def test_a_burst_of_a_minute_is_not_reported():
    rates = [*[10.0] * minutes(12), *[25.0] * minutes(1), *[10.0] * minutes(16)]
    assert not any(deviations(verdicts) for verdicts in run_cycles(rates, forecast(A))[1])


def test_a_deviation_ends_after_minutes_inside_the_forecast():
    _, results = run_cycles([20.0] * minutes(16) + [10.0] * minutes(16), forecast(A))
    stood = [bool(deviations(verdicts)) for verdicts in results[minutes(16) :]]
    assert stood[minutes(11)]  # the mean of ten minutes is inside after seven
    assert not stood[-1]
    assert all(first or not second for first, second in pairwise(stood))


def test_a_deviation_before_a_gap_does_not_continue_after_it():
    state, _ = run_cycles([20.0] * minutes(4), forecast(A))
    _, results = run_cycles([20.0] * minutes(4), forecast(A), state=state, start=START + 7200.0)
    assert not any(deviations(verdicts) for verdicts in results)


def test_missing_values_end_nothing():
    _, results = run_cycles([20.0] * minutes(16) + [np.nan] * minutes(8) + [20.0] * minutes(6), forecast(A))
    silent = results[minutes(23)]
    assert not deviations(silent)
    assert forecast_deviation.NAME in {one.detector for one in silent if isinstance(one, NoVerdict) and one.entity == A}
    assert deviations(results[-1])


def learned_state(level, detector=None, *, slots=3 * 144):
    """Detector state after three days at one level, or after ``slots`` of ten minutes."""
    count = slots
    values = np.full((1, count, len(KEYS)), np.nan)
    values[:, :, 0] = level
    status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    times = START - 600.0 * np.arange(count, 0, -1)
    detector = detector or ForecastDeviationDetector()
    past = Window(EntityKind.SERVICE, (A,), times, KEYS, values, status, timedelta(minutes=10))
    return detector.warm(detector.initial(), past)


REFUSED = {
    "no forecast": (None, "usual_no_forecast", {}),
    "another service": (forecast(B), "usual_no_forecast", {}),
    "does not reach": (forecast(A, low=np.nan, middle=np.nan, high=np.nan), "usual_forecast_past", {"minutes": "72"}),
    "of tokens": (
        forecast(A, signal="svc_tokens_per_second"),
        "usual_forecast_of_other",
        {"unit": "tokens_per_second", "wanted_unit": "per_second"},
    ),
    "of hours": (forecast(A, step=3600.0), "usual_forecast_other_slot", {"seconds": "3600", "wanted": "600"}),
    "not made yet": (forecast(A, made_at=START + 1e6), "usual_forecast_past", {}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_without_a_usable_forecast_the_usual_level_is_used_with_a_reason(case):
    forecast_view, text, arguments = REFUSED[case]
    _, results = run_cycles([30.0] * minutes(12), forecast_view, state=learned_state(10.0))
    (finding,) = deviations(results[-1])
    assert finding.evidence[0].arguments["due"] != "nan"
    assert finding.evidence[1].text == f"findings.{text}"
    assert arguments.items() <= finding.evidence[1].arguments.items()


def test_without_forecast_and_usual_level_nothing_is_reported():
    assert not any(deviations(verdicts) for verdicts in run_cycles([30.0] * minutes(20), None)[1])


def reasons(verdicts):
    return {one.entity: one.reason for one in verdicts if isinstance(one, NoVerdict)}


def test_a_service_without_expectation_has_no_verdict_with_a_reason():
    _, results = run_cycles([10.0] * minutes(12), None)
    assert reasons(results[-1]) == {A: NoVerdictReason.WARMING_UP}  # no forecast, and no hour is known
    _, results = run_cycles([10.0] * minutes(12), None, state=learned_state(10.0, slots=6 * 20))
    assert reasons(results[-1]) == {A: NoVerdictReason.WARMING_UP}
    known, hour = learned_state(10.0), int(START % 86400.0 / SLOT_SECONDS) % SLOTS
    known.arrays["slot_seconds"][:, :, hour : hour + 3] = 0.0
    _, results = run_cycles([10.0] * minutes(12), None, state=known)
    assert reasons(results[-1]) == {A: NoVerdictReason.NO_EXPECTATION}  # days were seen, and never this hour
    assert reasons(run_cycles([10.0] * minutes(12), forecast(A), state=known)[1][-1]) == {}


def test_too_few_readings_of_ten_minutes_give_no_verdict():
    _, results = run_cycles([10.0] * minutes(12), forecast(A))
    assert [reasons(results[minutes(at)]) for at in (1, 8)] == [{A: NoVerdictReason.WARMING_UP}, {}]
    _, results = run_cycles([10.0] * minutes(12) + [np.nan] * minutes(8), forecast(A))
    assert reasons(results[-1]) == {A: NoVerdictReason.NO_VALUES}


def test_it_is_registered_with_its_rollout_stage():
    status = DetectorRollout().judge(
        DetectorRun(
            DETECTORS[forecast_deviation.NAME](),
            learned_state(10.0),
            1,
            (NoVerdict(forecast_deviation.NAME, A, NoVerdictReason.WARMING_UP),),
        ),
        datetime.fromtimestamp(START, tz=UTC),
    )
    assert (status.detector, status.stage) == (forecast_deviation.NAME, Stage.ALERTING)
    assert status.silent == {NoVerdictReason.WARMING_UP: 1}


def test_each_service_is_compared_with_its_own_forecast():
    rates = np.array([[20.0] * minutes(16), [200.0] * minutes(16)])
    forecast_view = forecast(B, A)
    forecast_view.high[0], forecast_view.middle[0], forecast_view.low[0] = 260.0, 200.0, 150.0
    _, results = run_cycles(rates, forecast_view, entities=(A, B))
    assert [item.entity for item in deviations(results[-1])] == [A]


def drop_findings(forecast_view, state=None):
    _, results = run_cycles(
        [*[50.0] * minutes(12), *[5.0] * minutes(3)], forecast_view, state=state, detector=GatewayDetector()
    )
    return [one for one in results[-1] if isinstance(one, Finding)]


def test_a_forecast_drop_is_not_reported_and_other_drops_name_the_forecast():
    assert [finding.fault for finding in drop_findings(forecast(A, low=2.0, middle=6.0, high=60.0))] == []
    (finding,) = drop_findings(forecast(A, low=40.0, middle=50.0, high=60.0))
    assert (finding.fault, finding.severity) == ("traffic-drop", Priority.P2)
    assert finding.evidence[-1].text == "findings.traffic_was_forecast"


def test_a_drop_without_a_forecast_names_the_missing_forecast():
    (finding,) = drop_findings(None, state=learned_state(50.0, GatewayDetector()))
    assert finding.fault == "traffic-drop"
    assert finding.evidence[-1].text == "findings.usual_no_forecast"


def test_one_detector_reports_a_traffic_drop():
    rates, forecast_view = [*[50.0] * minutes(12), *[5.0] * minutes(20)], forecast(A, low=40.0, middle=50.0, high=60.0)
    results = [
        run_cycles(rates, forecast_view, detector=one)[1][-1]
        for one in (GatewayDetector(), ForecastDeviationDetector())
    ]
    assert [one.fault for verdicts in results for one in verdicts if isinstance(one, Finding)] == ["traffic-drop"]


def test_less_traffic_on_a_calendar_event_is_not_reported():
    when = datetime.fromtimestamp(START, tz=UTC)
    event = Event("e", EventKind.CHANGE, A, when, "change", "calendar", {}, "e")
    _, results = run_cycles([*ramp(10.0, 4.0, 60), *[4.0] * minutes(10)], forecast(A), events=(event,))
    assert not deviations(results[-1])
