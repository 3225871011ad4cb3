from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from detectors.load.gateway import GatewayDetector
from outrider.model import CellStatus, EntityKind, Event, EventKind, Finding, Window
from tests.detectors.load.test_forecast_deviation import A, forecast, run_cycles

S = EntityKind.SERVICE
START = 1_800_000_000.0
CALM, LATER = 60, 36  # scrapes of 5 s


def service(later_rate, *, probe=1.0, status=200.0, queue=0.0, ready=6.0, expiry=1e6, code=None, failed=0.0):
    """Fifty requests per scrape, then ``later_rate`` with the probe result ``probe``."""
    row = {
        "svc_requests_total": [50.0] * CALM + [later_rate] * LATER,
        "svc_requests_per_second": [10.0] * CALM + [later_rate / 5.0] * LATER,
        "svc_inflight_requests": [40.0] * (CALM + LATER),
        "svc_failed_total": [0.0] * CALM + [failed] * LATER,
        "svc_queue_requests": [0.0] * CALM + [queue] * LATER,
        "svc_ready_backends": [6.0] * CALM + [ready] * LATER,
        "probe_success": [1.0] * CALM + [probe] * LATER,
        "probe_http_status_code": [200.0] * CALM + [status] * LATER,
        "probe_cert_expiry_seconds": [1e6] * CALM + [expiry] * LATER,
    }
    if code is not None:
        row["probe_outcome_code"] = [0.0] * CALM + [code] * LATER
    return row


@pytest.fixture
def find(window_of, findings_of):
    def run(row, **more):
        return [item.fault for item in findings_of(GatewayDetector(), window_of(S, {"s": row}, **more))]

    return run


@pytest.mark.parametrize(("status", "code"), [(503.0, None), (503.0, 5.0), (0.0, 2.0), (0.0, None)])
def test_failed_probes_before_healthy_engines_are_a_gateway_fault(find, status, code):
    assert find(service(20.0, probe=0.0, status=status, code=code)) == ["gateway-fault"]


def test_a_gateway_that_fails_some_requests_is_reported(window_of, findings_of):
    row = service(25.0)
    row["probe_success"] = [1.0] * CALM + [0.0 if i % 3 == 0 else 1.0 for i in range(LATER)]
    row["probe_http_status_code"] = [200.0] * CALM + [503.0 if i % 3 == 0 else 200.0 for i in range(LATER)]
    (item,) = findings_of(GatewayDetector(), window_of(S, {"s": row}))
    assert (item.fault, item.evidence[0].text) == ("gateway-fault", "findings.probe_answered_wrongly")
    assert item.evidence[0].arguments["status"] == "503"


@pytest.mark.parametrize(
    "row",
    [
        service(5.0, probe=0.0, status=0.0, expiry=-3600.0),  # an expired certificate
        service(5.0, probe=0.0, status=0.0, code=3.0),  # no name
        service(5.0, probe=0.0, status=0.0, code=4.0),  # TLS
        service(50.0, probe=0.0, status=503.0),  # as many get through: the probe's own trouble
        service(20.0, probe=0.0, status=0.0, queue=300.0),  # users queue: the engines are late
        service(20.0, probe=0.0, status=500.0, failed=10.0),  # the engines fail
        service(20.0, probe=0.0, status=503.0, ready=0.0),  # there are no engines
    ],
)
def test_failures_elsewhere_are_not_a_gateway_fault(find, row):
    assert find(row) == []


def test_probes_that_failed_without_ready_engines_do_not_blame_the_gateway(find):
    row = service(5.0, probe=0.0, status=503.0)
    row["svc_ready_backends"] = [6.0] * CALM + [0.0] * (LATER - 3) + [1.0] * 3
    assert find(row) == []


def test_far_fewer_requests_through_a_working_gateway_are_a_traffic_drop(find):
    assert find(service(3.0)) == ["traffic-drop"]


@pytest.mark.parametrize(
    "row",
    [
        service(30.0),  # fewer, as on a holiday
        service(3.0, ready=0.0),  # no engine left
        service(10.0, ready=1.0),  # a view that lost engines: each gets as much as before
        service(3.0, probe=0.0, status=503.0, queue=50.0),
    ],
)
def test_small_or_explained_changes_are_not_a_traffic_drop(find, row):
    assert find(row) == []


def test_a_calendar_event_is_not_a_traffic_drop(find, ref):
    when = datetime.fromtimestamp(START + 290, tz=UTC)
    event = Event("e", EventKind.CHANGE, ref(S, "s"), when, "change", "calendar", {}, "e")
    assert find(service(3.0), events=[event]) == []


@pytest.mark.parametrize(
    ("status", "last", "minutes", "faults"),
    [
        (429.0, "degrade_service", 40, []),  # rejected by the level
        (0.0, "degrade_service", 40, []),  # let wait by the level
        (503.0, "degrade_service", 40, ["gateway-fault"]),  # no level answers with a server error
        (0.0, "degrade_service", 90, ["gateway-fault"]),  # a level long forgotten
        (0.0, "restore_service", 5, []),  # held requests come after the level
        (0.0, "restore_service", 15, ["gateway-fault"]),
    ],
)
def test_what_a_degrade_level_sheds_is_no_gateway_fault(find, ref, status, last, minutes, faults):
    ends = datetime.fromtimestamp(START + 5.0 * (CALM + LATER), tz=UTC)
    levels = {"degrade_service": timedelta(minutes=40), last: timedelta(minutes=minutes)}
    events = [
        Event(code, EventKind.ACTION, ref(S, "s"), ends - ago, "outrider", code, {}, code)
        for code, ago in levels.items()
    ]
    assert find(service(5.0, probe=0.0, status=status), events=events) == faults


def learnt(window_of, level):
    """Three days of ten-minute means at one level."""
    length = 3 * 144
    window = window_of(S, {"s": {"svc_requests_per_second": [level] * length}})
    times = START - 600.0 * np.arange(length, 0, -1)
    past = Window(S, window.entities, times, window.keys, window.values, window.status, window.step)
    detector = GatewayDetector()
    return detector, detector.warm(detector.initial(), past)


@pytest.mark.parametrize(("usual", "faults"), [(10.0, ["traffic-drop"]), (1.5, [])])
def test_the_end_of_a_burst_is_not_a_drop_if_the_hour_is_known(window_of, now_of, usual, faults):
    detector, state = learnt(window_of, usual)
    window = window_of(S, {"s": service(12.0)})  # from 10/s to 2.4/s
    verdicts = ()
    for length in range(1, window.times.size + 1):
        part = Window(
            S, window.entities, window.times[:length], window.keys, window.values[:, :length],
            window.status[:, :length], window.step,
        )  # fmt: skip
        state, verdicts = detector.detect(state, part, None, now_of(part))
    assert [item.fault for item in verdicts if item.fault] == faults


@pytest.mark.parametrize(("good", "faults"), [(11, ["gateway-fault"]), (13, [])])
def test_a_gateway_fault_ends_a_minute_after_its_last_failed_probe(find, good, faults):
    row = service(20.0, probe=0.0, status=503.0)
    row = {name: [*values, *[values[0]] * good] for name, values in row.items()}
    assert find(row) == faults


def test_a_drop_ends_when_the_requests_come_back(window_of, findings_of):
    row = {name: [*values, *values[:40]] for name, values in service(3.0).items()}
    assert findings_of(GatewayDetector(), window_of(S, {"s": row})) == []


@pytest.mark.parametrize("later", [5.0, 15.0])
def test_low_traffic_for_half_a_day_is_the_new_baseline(later):
    """A fall from 50 to 15 is not a drop if it was forecast, and is learned only after it lasted."""

    def due(at):
        return forecast(A, *((40.0, 50.0, 60.0) if at < START + 7200.0 else (12.0, 15.0, 18.0)))

    rates = [50.0] * 60 + [later] * 14 * 60
    (state, results) = run_cycles(rates, due if later == 15.0 else None, detector=GatewayDetector(), apart=60.0)
    drops = [any(isinstance(one, Finding) and one.fault == "traffic-drop" for one in verdicts) for verdicts in results]
    if later == 5.0:
        assert drops[70]
        assert drops[60 + 11 * 60]
    assert not any(drops[60 + 13 * 60 :])
    assert state.arrays["arriving"][0] == pytest.approx(later * 15.0 / 60.0, rel=0.05)  # of a cycle a minute
    assert np.isnan(state.arrays["low_since"][0])
    (again, _) = run_cycles(
        [later] * 60, None, detector=GatewayDetector(), state=state, start=START + 15 * 3600.0, apart=60.0
    )
    assert again.arrays["updates"][0, 0] > state.arrays["updates"][0, 0], "its hours are learnt again"


def test_missing_values_give_no_verdict(window_of, findings_of):
    row = {"svc_requests_total": [None] * 20}
    verdicts = []
    assert findings_of(GatewayDetector(), window_of(S, {"s": row}), verdicts=verdicts) == []
    assert [item.reason.value for item in verdicts] == ["no_values"]
    assert findings_of(GatewayDetector(), window_of(S, {"s": {"svc_requests_total": [5.0]}})) == []
    stale = {("s", "svc_requests_total", 0): CellStatus.STALE}
    one = window_of(S, {"s": {"svc_requests_total": [5.0]}}, statuses=stale)
    assert findings_of(GatewayDetector(), one) == []
