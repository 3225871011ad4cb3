"""Burn rates of error budgets, minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from detectors.rules.burn_rate import BurnRateDetector
from outrider.model import (
    CellStatus,
    EntityKind,
    EntityRef,
    Finding,
    NoVerdict,
    NoVerdictReason,
    Priority,
    SignalKey,
    Window,
)
from outrider.topology import Topology
from outrider.vocabulary.slo import Slo

START = 1_800_000_000.0
STEP = 60.0
BAD, TOTAL = SignalKey("svc_failed_total"), SignalKey("svc_requests_total")
CHAT, CODE = (EntityRef("lab", EntityKind.SERVICE, None, name) for name in ("chat", "code"))


def slo(**changes):
    return Slo(**({"name": "answers", "objective": 0.999, "bad": (BAD,), "total": (TOTAL,)} | changes))


class MinuteRunner:
    """Runs a detector in steps of one minute, with windows as in the engine."""

    def __init__(self, given=None, services=(CHAT,)) -> None:
        self.detector = BurnRateDetector(given or slo())
        self.services = services
        self.state = self.detector.initial()
        self.rows, self.times, self.verdicts = [], [], ()
        self.at = START

    def minutes(self, count, bad=0.0, total=100.0):
        for _ in range(count):
            self.at += STEP
            values = {BAD: bad, TOTAL: total}
            self.rows.append([[values[key] for key in self.detector.keys] for _ in self.services])
            self.times.append(self.at)
            self.rows, self.times = self.rows[-10:], self.times[-10:]
            self.look()
        return self.verdicts

    def look(self):
        values = np.array(self.rows, dtype=float).transpose(1, 0, 2)
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        part = Window(
            EntityKind.SERVICE, self.services, np.array(self.times), self.detector.keys, values, status,
            timedelta(seconds=STEP),
        )  # fmt: skip
        now = datetime.fromtimestamp(self.at, tz=UTC)
        self.state, self.verdicts = self.detector.detect(self.state, part, Topology.build(()), now)

    def quiet(self, hours=80):
        """Warms the detector with ten-minute history without failures."""
        times = self.at + 600.0 * np.arange(-hours * 6, 0)
        values = np.zeros((len(self.services), times.size, 2))
        values[:, :, self.detector.keys.index(TOTAL)] = 1000.0
        status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
        part = Window(
            EntityKind.SERVICE, self.services, times, self.detector.keys, values, status, timedelta(minutes=10)
        )
        self.state = self.detector.warm(self.state, part)
        return self


def finding(verdicts):
    burn = [one for one in verdicts if isinstance(one, Finding)]
    assert len(burn) <= 1
    return burn[0] if burn else None


def test_a_met_slo_has_no_finding():
    assert MinuteRunner().quiet().minutes(30, bad=0.05) == ()


def test_a_fast_burn_pages_with_its_rate():
    runner = MinuteRunner().quiet()
    assert finding(runner.minutes(4, bad=10)) is None, "ten percent for four minutes: not 2 % of a month yet"
    burn = finding(runner.minutes(8, bad=10))
    assert (burn.severity, burn.entity, burn.detector) == (Priority.P1, CHAT, "slo:answers")
    (evidence,) = burn.evidence
    assert evidence.arguments["long"] == "1h"
    assert burn.observed > 14.4 == burn.expected.high
    assert evidence.arguments["bad"] == "120"


def test_a_finding_ends_when_the_short_window_is_quiet():
    runner = MinuteRunner().quiet()
    assert finding(runner.minutes(15, bad=20))
    assert finding(runner.minutes(2)), "five minutes are not over"
    runner.minutes(5)
    assert finding(runner.verdicts).evidence[0].arguments["long"] == "6h", "the slower pair goes on"
    runner.minutes(30)
    burn = finding(runner.verdicts)
    assert burn is None or burn.severity is Priority.P2


def test_a_slow_burn_is_a_ticket():
    runner = MinuteRunner().quiet(hours=1)
    for _ in range(12):
        runner.minutes(60, bad=0.5)
    burn = finding(runner.verdicts)
    assert burn is None, "half a day at five times the pace is 17 % of three days' budget at most"
    for _ in range(12):
        runner.minutes(60, bad=0.5)
    burn = finding(runner.verdicts)
    assert (burn.severity, burn.evidence[0].arguments["long"]) == (Priority.P2, "3d")


def test_one_error_at_low_traffic_is_not_an_outage():
    runner = MinuteRunner()
    runner.quiet(hours=0)
    verdicts = runner.minutes(30, bad=0, total=0)
    assert verdicts == (), "no requests and no failures"
    verdicts = runner.minutes(1, bad=1, total=2)
    assert finding(verdicts) is None
    assert [one.reason for one in verdicts if isinstance(one, NoVerdict)] == [NoVerdictReason.NOT_ENOUGH_EVENTS]


def test_a_finding_lasts_without_requests():
    runner = MinuteRunner().quiet()
    assert finding(runner.minutes(15, bad=20))
    verdicts = runner.minutes(40, bad=0, total=0)
    assert finding(verdicts) is None
    assert [one.reason for one in verdicts] == [NoVerdictReason.NOT_ENOUGH_EVENTS]


def test_an_outage_in_the_first_minutes_of_a_service_pages():
    burn = finding(MinuteRunner().minutes(3, bad=100))
    assert burn.severity is Priority.P1


def test_a_few_errors_in_the_first_minutes_do_not():
    assert finding(MinuteRunner().minutes(3, bad=2)) is None


def test_an_slo_without_values_has_no_verdict():
    verdicts = MinuteRunner().minutes(5, bad=np.nan, total=np.nan)
    assert verdicts == (NoVerdict("slo:answers", None, NoVerdictReason.NO_VALUES),)
    runner = MinuteRunner(slo(service=EntityRef("lab", EntityKind.SERVICE, None, "gone")))
    assert runner.minutes(5) == (NoVerdict("slo:answers", runner.detector._slo.service, NoVerdictReason.NO_VALUES),)


def test_failures_without_a_counter_do_not_count():
    assert MinuteRunner().minutes(5, bad=np.nan) == ()


def test_an_slo_of_one_service_covers_no_other():
    runner = MinuteRunner(slo(service=CODE), services=(CHAT, CODE))
    assert finding(runner.minutes(10, bad=50)).entity == CODE


def test_a_service_absent_for_a_while_keeps_its_history():
    runner = MinuteRunner(services=(CHAT, CODE)).quiet()
    runner.minutes(15, bad=20)
    runner.services, runner.rows, runner.times = (CODE,), [], []
    runner.minutes(60)
    assert CHAT in runner.state.entities
    runner.minutes(150)
    assert CHAT not in runner.state.entities


def test_counts_of_another_slo_definition_are_ignored():
    runner = MinuteRunner().quiet()
    runner.minutes(15, bad=50)
    other = BurnRateDetector(slo(bad=(SignalKey("svc_abandoned_total"),)))
    assert other.restored(runner.state)[0].entities == ()
    assert runner.detector.restored(runner.state) == (runner.state, "")


@pytest.mark.parametrize("objective", [0.0, 1.0])
def test_an_slo_without_a_budget_is_rejected(objective):
    with pytest.raises(ValueError, match="error budget"):
        BurnRateDetector(slo(objective=objective))
