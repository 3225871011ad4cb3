"""Verdicts on alerts, and the precision of rules and pages."""

from datetime import UTC, datetime, timedelta

import pytest

from outrider.errors import UsageError
from outrider.model import Alert, AlertReason, AlertState, EntityKind, EntityRef, Priority
from outrider.records.feedback import Feedback, RulePrecision, Usefulness, by_rule, judged, page_counts
from outrider.vocabulary import indicators

T0 = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
GPU = EntityRef("c", EntityKind.GPU, None, "gpu-1")
USEFUL, NOT_USEFUL, WRONG_CAUSE = Usefulness.USEFUL, Usefulness.NOT_USEFUL, Usefulness.WRONG_CAUSE
ALERT = Alert("f", "r", Priority.P1, GPU, AlertState.FIRING, AlertReason.STILL_TRUE, T0, T0, incident="i")


def rating(verdict, *, rule="r", incident="i", spell=0, by="ann"):
    starts_at = T0 + timedelta(minutes=spell)
    return Feedback(rule, starts_at, rule, GPU, Priority.P1, verdict, by, T0, incident)


def test_a_verdict_copies_rule_entity_and_incident_of_the_alert():
    found = judged(ALERT, WRONG_CAUSE, by="ann", at=T0, cause="gpu-lost")
    assert (found.fingerprint, found.starts_at, found.rule, found.priority, found.incident) == ("f", T0, "r", "P1", "i")
    assert found.was_justified
    assert not judged(ALERT, NOT_USEFUL, by="ann", at=T0).was_justified


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"verdict": USEFUL, "cause": "gpu-lost"}, "belongs to the verdict wrong_cause"),
        ({"verdict": WRONG_CAUSE, "cause": "gpu-lots"}, 'did you mean "gpu-lost"'),
        ({"verdict": USEFUL, "comment": "x" * 1001}, "1000 characters at most, this one 1001"),
    ],
)
def test_contradictory_verdicts_are_rejected(more, message):
    with pytest.raises(UsageError, match=message):
        judged(ALERT, by="ann", at=T0, **more)


def test_all_alerts_of_a_rule_in_one_incident_are_one_occasion():
    storm = [rating(NOT_USEFUL, spell=number) for number in range(50)]
    apart = [rating(USEFUL, incident=None, spell=number) for number in (60, 61)]
    assert by_rule([*storm, *apart]) == (RulePrecision("r", 2, 0, 1),)


def test_the_better_of_two_verdicts_counts():
    both = [rating(NOT_USEFUL), rating(WRONG_CAUSE, by="bob")]
    assert by_rule(both) == by_rule(reversed(both)) == (RulePrecision("r", 0, 1, 0),)


def test_rules_are_sorted_by_number_of_verdicts():
    found = by_rule(
        [rating(NOT_USEFUL, rule="b")] + [rating(USEFUL, rule="a", incident=str(number)) for number in range(3)]
    )
    assert [(one.rule, one.judged, one.precision) for one in found] == [("a", 3, 1.0), ("b", 1, 0.0)]
    assert found[0].interval == indicators.wilson_interval(3, 3)


def test_the_interval_is_that_of_wilson():
    # R: prop.test(8, 10, correct = FALSE)$conf.int
    low, high = indicators.wilson_interval(8, 10)
    assert (low, high) == (pytest.approx(0.4901625, abs=1e-6), pytest.approx(0.9433178, abs=1e-6))
    assert indicators.wilson_interval(0, 0) == (0.0, 1.0)
    assert indicators.wilson_interval(0, 5)[0] == 0.0
    assert indicators.wilson_interval(5, 5)[1] == 1.0
    assert RulePrecision("r", 0, 0, 0).precision is None
    with pytest.raises(ValueError, match="6 hits in 5"):
        indicators.wilson_interval(6, 5)


def test_a_page_is_judged_by_any_alert_of_its_incident():
    verdicts = [
        rating(NOT_USEFUL, rule="a"),
        rating(USEFUL, rule="b"),
        rating(NOT_USEFUL, incident="j"),
        rating(USEFUL, incident="not paged"),
        rating(USEFUL, incident=None),
    ]
    assert page_counts(verdicts, ["i", "j", "never judged"]) == (1, 2)
    assert indicators.page_precision(1, 2) == 0.5
