"""The effect of deliveries on received alerts: duplicates, late ends, repeated starts, stepping clocks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from outrider.model import AlertState, Priority
from outrider.records.received_alerts import ReceiptOutcome, ReceivedAlert, ended, merge_all, merged

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def firing(*, starts: datetime = T0, received: datetime = T0, print_: str = "a1", group: str = "") -> ReceivedAlert:
    return ReceivedAlert(
        source="alertmanager",
        fingerprint=print_,
        name="KubeNodeNotReady",
        state=AlertState.FIRING,
        priority=Priority.P1,
        starts_at=min(starts, received),
        reported_at=starts,
        received_at=received,
        labels={"node": "n1"},
        group=group,
    )


def resolved(*, starts: datetime = T0, ends: datetime, print_: str = "a1") -> ReceivedAlert:
    return ended(firing(starts=starts, received=ends, print_=print_), ends, ends)


def test_a_repeated_start_keeps_the_first_one_and_counts():
    first = firing()
    after, outcome = merged(first, firing(received=T0 + MINUTE))
    assert outcome is ReceiptOutcome.REPEATED
    assert (after.starts_at, after.deliveries, after.received_at) == (T0, 2, T0 + MINUTE)


def test_an_end_resolves_and_its_repetition_changes_nothing():
    after, outcome = merged(firing(), resolved(ends=T0 + MINUTE))
    assert (after.state, after.ends_at, outcome) == (AlertState.RESOLVED, T0 + MINUTE, ReceiptOutcome.RESOLVED)
    assert merged(after, resolved(ends=T0 + 2 * MINUTE)) == (after, ReceiptOutcome.REPEATED)


def test_an_end_without_a_start_is_kept_as_resolved():
    after, outcome = merged(None, resolved(ends=T0 + MINUTE))
    assert (after.state, outcome) == (AlertState.RESOLVED, ReceiptOutcome.RESOLVED)


def test_a_late_end_of_an_earlier_occurrence_does_not_end_the_present_one():
    present = firing(starts=T0 + 10 * MINUTE, received=T0 + 10 * MINUTE)
    late = replace(resolved(ends=T0 + 5 * MINUTE), received_at=T0 + 11 * MINUTE)
    assert merged(present, late) == (present, ReceiptOutcome.LATE)


def test_a_start_that_arrives_after_its_end_is_late():
    over = resolved(ends=T0 + MINUTE)
    assert merged(over, firing(received=T0 + 2 * MINUTE)) == (over, ReceiptOutcome.LATE)


def test_the_same_start_long_after_its_end_is_a_new_occurrence():
    over = resolved(ends=T0 + MINUTE)
    after, outcome = merged(over, firing(received=T0 + 60 * MINUTE))
    assert (outcome, after.is_firing, after.starts_at) == (ReceiptOutcome.NEW, True, T0 + 60 * MINUTE)


def test_a_later_start_after_an_end_is_a_new_occurrence():
    over = resolved(ends=T0 + MINUTE)
    after, outcome = merged(over, firing(starts=T0 + 3 * MINUTE, received=T0 + 3 * MINUTE))
    assert (outcome, after.starts_at, after.ends_at) == (ReceiptOutcome.NEW, T0 + 3 * MINUTE, None)


def test_an_alert_is_not_lost_if_the_clock_of_its_sender_steps_back():
    over = resolved(starts=T0 + 60 * MINUTE, ends=T0 + 61 * MINUTE)
    after, outcome = merged(over, firing(starts=T0, received=T0 + 70 * MINUTE))
    assert outcome is ReceiptOutcome.NEW
    assert after.starts_at == T0 + 70 * MINUTE


def test_two_occurrences_never_share_their_start():
    over = resolved(ends=T0)
    after, _ = merged(over, firing(received=T0, starts=T0 + MINUTE))
    assert after.starts_at != over.starts_at


def test_one_delivery_may_hold_the_same_alert_twice():
    changed, counts = merge_all({}, [firing(), firing(received=T0 + MINUTE)])
    assert counts == {ReceiptOutcome.NEW: 1, ReceiptOutcome.REPEATED: 1}
    assert [alert.deliveries for alert in changed.values()] == [2]


def test_the_end_of_a_group_ends_its_alerts_and_no_other():
    alerts = [firing(print_="a", group="node-1/xid"), firing(print_="b", group="node-1/xid"), firing(print_="c")]
    end = replace(resolved(ends=T0 + MINUTE, print_="x"), group="node-1/xid", resolves_group=True)
    changed, counts = merge_all({alert.id: alert for alert in alerts}, [end])
    assert sorted(alert.fingerprint for alert in changed.values()) == ["a", "b"]
    assert all(alert.ends_at == T0 + MINUTE for alert in changed.values())
    assert counts == {ReceiptOutcome.RESOLVED: 2}
