"""Delivery to phone numbers while the API of the vendor is slow: each call takes 10 s."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.clock import ManualClock
from outrider.errors import DeliveryError
from outrider.model import ChannelPolicy, CycleRecord, Message, NotifyReason, Priority, Receipt, Recipient
from outrider.ports import CycleCommit
from service.engine.delivery import LEASE, MessageDelivery
from store.memory import MemoryStateStore

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
RECORD = CycleRecord("cycle", NOW, 0.1, 1, 1, 1, 0, 0, 0)
PAGE = Message("m-1", "im", NotifyReason.OPENED, Priority.P0, "inc-1", "t", "b", NOW, is_page=True)
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
LI, WANG = Recipient("li", phone="+86 138-0000-0001"), Recipient("wang", phone="+8613800000002")
EACH_NUMBER = ChannelPolicy(per_number=True)


def away():
    return DeliveryError("the vendor does not respond", retryable=True, reason="timeout")


def called(count, priority=Priority.P0):
    """Messages to as many phone numbers."""
    people = [Recipient(f"p-{number}", phone=f"+86139000000{number:02}") for number in range(count)]
    return [
        replace(
            PAGE,
            id=f"n-{number:03}",
            incident=f"inc-n-{number}",
            priority=priority,
            is_page=priority is Priority.P0,
            recipients=(one,),
        )
        for number, one in enumerate(people)
    ]


class Desk:
    """A delivery on a store in memory with a manual clock. ``during`` runs in the first call, ``fault`` ends each."""

    def __init__(self, *messages, fault=None, during=lambda desk: None, policy=EACH_NUMBER) -> None:
        self.state, self.clock = MemoryStateStore(), ManualClock(NOW)
        self.fault, self.during, self.tried, self.copied = fault, during, [], []
        channels = {"im": self, "mail": Mail(self.copied)}
        self.delivery = MessageDelivery(self.state, channels, self.clock, "one", {"im": policy})
        self.add(*messages)

    def add(self, *messages):
        self.state.commit(CycleCommit(RECORD, messages=messages))

    def run_for(self, duration):
        end = self.clock.now() + duration
        while self.clock.now() <= end:
            self.delivery.run_once()
            self.clock.advance(SECOND)

    def send(self, message):
        if not self.tried:
            self.during(self)
        self.tried.append((message.id, self.clock.now() - NOW))
        self.clock.advance(10 * SECOND)
        if self.fault is not None:
            raise self.fault
        return Receipt()

    @property
    def ids(self):
        return [name for name, _ in self.tried]


class Mail:
    """A fallback."""

    def __init__(self, sent) -> None:
        self.sent = sent

    def send(self, message):
        self.sent.append(message.id)
        return Receipt()


@pytest.mark.parametrize("fault", [None, away()])
def test_a_page_does_not_wait_behind_messages_to_other_numbers(fault):
    def decide(desk):
        desk.add(replace(PAGE, recipients=(LI,)))
        desk.delivery.wake()

    desk = Desk(*called(12, Priority.P2), fault=fault, during=decide)
    desk.run_for(15 * SECOND)
    assert desk.ids[:2] == ["n-000", "m-1"]
    assert desk.tried[1][1] <= 11 * SECOND


def test_a_page_goes_before_a_less_urgent_message_to_a_number_that_has_a_page_too():
    note = replace(PAGE, id="n-1", incident="inc-n", priority=Priority.P2, is_page=False, recipients=(LI,))
    pages = [replace(PAGE, id=f"m-{one.name}", incident=one.name, recipients=(one,)) for one in (LI, WANG)]
    desk = Desk(note, *pages)
    desk.delivery.run_once()
    assert desk.ids == ["m-li", "m-wang", "n-1"]


def test_a_failing_vendor_is_not_attempted_for_each_number_of_a_claim():
    desk = Desk(*called(12), fault=away())
    desk.delivery.run_once()
    assert len(desk.tried) == 2


def test_numbers_that_keep_failing_keep_no_other_from_being_called_or_from_the_fallback():
    desk = Desk(*called(12), fault=away(), policy=ChannelPolicy(per_number=True, fallback="mail"))
    desk.run_for(2 * MINUTE)
    names = {f"n-{number:03}" for number in range(12)}
    assert set(desk.ids) == names
    assert set(desk.copied) == {f"{name}:fallback:mail" for name in names}


def test_the_work_on_a_claim_ends_within_its_lease_with_a_slow_vendor():
    desk = Desk(*called(12))
    desk.delivery.run_once()
    assert desk.clock.now() - NOW < LEASE
    desk.run_for(3 * MINUTE)
    assert sorted(desk.ids) == [f"n-{number:03}" for number in range(12)]
