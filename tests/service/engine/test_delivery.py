"""Delivery of messages: limits, merging, retries, pauses, fallback, threads and receipts."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from alerts.notify import phone, recipients
from outrider.clock import ManualClock, SystemClock
from outrider.errors import DeliveryError, StoreError
from outrider.model import (
    Button,
    ButtonAction,
    ButtonClaim,
    ChannelPolicy,
    CycleRecord,
    Message,
    NotifyReason,
    Priority,
    RateLimit,
    Receipt,
    Recipient,
)
from outrider.ports import CycleCommit
from service.engine.delivery import LEASE, MessageDelivery
from store.memory import MemoryStateStore

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
RECORD = CycleRecord("cycle", NOW, 0.1, 1, 1, 1, 0, 0, 0)
PAGE = Message("m-1", "im", NotifyReason.OPENED, Priority.P0, "inc-1", "t", "b", NOW, is_page=True)
NOTE = replace(PAGE, id="n-1", priority=Priority.P2, incident="inc-2", is_page=False)
MINUTE = timedelta(minutes=1)


class Channel:
    """A channel that records messages; faults are raised in turn, one for each attempt."""

    def __init__(self, *faults) -> None:
        self.sent, self.faults, self.attempts = [], list(faults), 0

    def send(self, message):
        self.attempts += 1
        if self.faults:
            fault = self.faults.pop(0)
            if fault is not None:
                raise fault
        self.sent.append(message)
        return Receipt(f"receipt {len(self.sent)}")

    @property
    def ids(self):
        return [message.id for message in self.sent]


class BrokenChannel(Channel):
    """A channel that fails until ``fault`` is None."""

    def __init__(self, fault) -> None:
        super().__init__()
        self.fault = fault

    def send(self, message):
        self.attempts += 1
        if self.fault is not None:
            raise self.fault
        self.sent.append(message)
        return Receipt()


class ThreadChannel(Channel):
    """A channel with threads."""

    def follow_up(self, message, first):
        self.sent.append(message)
        return Receipt(f"in the thread of {first.id}")


def away(**fields):
    return DeliveryError("the channel is away", **{"retryable": True, "reason": "refused", **fields})


class Desk:
    """A delivery on a store in memory with a manual clock."""

    def __init__(self, channels, policies=None, *messages, sign=None) -> None:
        self.state, self.clock = MemoryStateStore(), ManualClock(NOW)
        self.delivery = MessageDelivery(self.state, channels, self.clock, "one", policies, sign=sign)
        self.add(*messages)

    def add(self, *messages):
        self.state.commit(CycleCommit(RECORD, messages=messages))

    def run_for(self, duration, step=timedelta(seconds=5)):
        end = self.clock.now() + duration
        while self.clock.now() <= end:
            self.delivery.run_once()
            self.clock.advance(step)

    def audited(self, event):
        return [record for record in reversed(self.state.audit()) if record.event == event]


def notes(count, **fields):
    return [
        replace(NOTE, id=f"n-{number:03}", incident=f"inc-{number}", title=f"note {number}", **fields)
        for number in range(count)
    ]


@pytest.mark.parametrize("sign", [None, lambda claim: f"https://api.example/{claim.nonce}"])
def test_the_links_of_buttons_are_made_at_delivery_and_are_not_in_the_store(sign):
    claim = ButtonClaim(ButtonAction.ACKNOWLEDGE, "inc-1", "", "im", NOW + timedelta(hours=1), "n1")
    buttons = (Button(ButtonAction.ACKNOWLEDGE, claim=claim), Button(ButtonAction.OPEN, "https://outrider.example"))
    channel = Channel()
    desk = Desk({"im": channel}, {}, replace(PAGE, buttons=buttons), sign=sign)
    desk.delivery.run_once()
    acting = [] if sign is None else ["https://api.example/n1"]
    assert [button.url for button in channel.sent[0].buttons] == [*acting, "https://outrider.example"]
    [stored] = desk.state.messages(incident=PAGE.incident)
    assert stored.buttons == buttons


def test_the_receipt_is_in_the_audit_log_and_in_the_store():
    channel = Channel()
    desk = Desk({"im": channel}, {}, PAGE)
    assert desk.delivery.run_once() == 1
    (record,) = desk.audited("message_delivered")
    assert (record.subject, record.reason) == ("m-1", "delivered")
    assert record.detail == {"channel": "im", "receipt": "receipt 1"}
    assert desk.state.first_receipt("im", "inc-1") == Receipt("receipt 1")


def test_at_the_limit_waiting_messages_are_merged_and_none_is_lost():
    channel = Channel()
    policy = ChannelPolicy(RateLimit(4, MINUTE))
    desk = Desk({"im": channel}, {"im": policy}, *notes(3))
    desk.delivery.run_once()
    assert channel.ids == ["n-000", "n-001", "n-002"]
    desk.add(*(replace(note, id=f"later-{note.id}") for note in notes(40)), PAGE)
    desk.delivery.run_once()
    assert channel.ids[3:] == ["m-1"], "the last slot is for the page"
    desk.run_for(2 * MINUTE)
    (merged,) = channel.sent[4:]
    assert merged.title == "40 notifications at once: 40 P2"
    (record,) = [record for record in desk.audited("message_delivered") if record.reason == "merged"]
    assert record.detail["messages"].split() == [f"later-n-{number:03}" for number in range(40)]
    assert desk.state.due_channels(desk.clock.now() + timedelta(days=1)) == ()


def test_the_limit_holds_in_any_minute():
    class TimedChannel(Channel):
        def send(self, message):
            times.append(desk.clock.now())
            return super().send(message)

    times = []
    channel = TimedChannel()
    desk = Desk({"im": channel}, {"im": ChannelPolicy(RateLimit(5, MINUTE))})
    for number in range(60):
        desk.add(*(replace(note, id=f"{number}-{note.id}", created_at=desk.clock.now()) for note in notes(3)))
        desk.delivery.run_once()
        desk.clock.advance(timedelta(seconds=5))
    assert max(sum(start <= at < start + MINUTE for at in times) for start in times) <= 5


def test_a_channel_that_cannot_merge_delivers_the_rest_later():
    channel = Channel()
    desk = Desk({"im": channel}, {"im": ChannelPolicy(RateLimit(2, MINUTE), merges=False)}, *notes(5))
    desk.run_for(4 * MINUTE)
    assert channel.ids == [f"n-{number:03}" for number in range(5)]


def test_messages_that_a_phone_does_not_send_take_no_slot_of_its_limit():
    phone = Channel()
    policy = ChannelPolicy(RateLimit(1, MINUTE), accepts=lambda message: message.is_page)
    end = replace(PAGE, id="m-0", incident="inc-0", reason=NotifyReason.RESOLVED, is_page=False)
    desk = Desk({"im": phone}, {"im": policy}, end)
    desk.delivery.run_once()
    desk.add(PAGE)
    desk.delivery.run_once()
    assert phone.ids == ["m-1"]
    reasons = {record.subject: record.reason for record in desk.audited("message_delivered")}
    assert reasons == {"m-0": "not_needed", "m-1": "delivered"}


LI, WANG = Recipient("li", phone="+86 138-0000-0001"), Recipient("wang", phone="+8613800000002")
EACH_NUMBER = ChannelPolicy(RateLimit(1, MINUTE), per_number=True)


def test_the_limit_of_a_phone_is_that_of_each_number():
    phone = Channel()
    calls = [
        replace(PAGE, id=f"m-{number}", incident=f"inc-{number}", recipients=people)
        for number, people in enumerate([(LI,), (WANG,), (LI, WANG), ()])
    ]
    desk = Desk({"im": phone}, {"im": EACH_NUMBER}, *calls)
    desk.delivery.run_once()
    assert sorted(phone.ids) == ["m-0", "m-1", "m-3"], "m-2 would ring twice within a minute"
    desk.run_for(timedelta(seconds=61))
    assert phone.ids[-1] == "m-2"


def test_a_number_that_asks_for_a_pause_delays_no_other():
    busy = DeliveryError("busy", retryable=True, reason="limit", retry_after=MINUTE)
    phone = Channel(busy)
    calls = [replace(PAGE, id="m-0", recipients=(LI,)), replace(PAGE, id="m-1", incident="inc-2", recipients=(WANG,))]
    desk = Desk({"im": phone}, {"im": EACH_NUMBER}, *calls)
    desk.delivery.run_once()
    assert phone.ids == ["m-1"]


class Switchboard:
    """Calls each number of a message; some are busy at first, and some do not exist."""

    def __init__(self, *, busy=(), wrong=()) -> None:
        self.busy, self.wrong, self.called = list(busy), wrong, []

    def send(self, message):
        return phone.to_each(message, recipients.phones(message, ("+8613800000009",)), self._call)

    def _call(self, number):
        self.called.append(number)
        if number in self.wrong:
            raise DeliveryError("no such number", retryable=False, reason="wrong")
        if number in self.busy:
            self.busy.remove(number)
            raise DeliveryError("busy", retryable=True, reason="busy")
        return number


@pytest.mark.parametrize("people", [(LI, WANG), (LI, Recipient("zhao"))])
def test_a_number_that_failed_is_called_again_without_those_that_were_reached(people):
    board = Switchboard(busy=["+8613800000001"] * 2)
    desk = Desk({"im": board}, {"im": EACH_NUMBER}, replace(PAGE, recipients=(*people, WANG)))
    desk.run_for(5 * MINUTE)
    assert board.called == ["+8613800000001", "+8613800000002", *["+8613800000001"] * 2]
    assert len(desk.audited("message_delivered")) == 2


def test_a_number_that_does_not_exist_is_called_once():
    board = Switchboard(wrong=["+8613800000001"])
    desk = Desk({"im": board}, {"im": EACH_NUMBER}, replace(PAGE, recipients=(LI, WANG)))
    desk.run_for(5 * MINUTE)
    assert board.called == ["+8613800000001", "+8613800000002"]


def test_a_requested_pause_is_kept_for_the_whole_channel():
    channel = Channel(away(reason="http_429", retry_after=timedelta(seconds=90)))
    desk = Desk({"im": channel}, {}, *notes(3))
    desk.run_for(timedelta(seconds=80))
    desk.add(PAGE)
    desk.delivery.run_once()
    assert channel.attempts == 1
    desk.run_for(MINUTE)
    assert sorted(channel.ids) == ["m-1", "n-000", "n-001", "n-002"]


def test_a_failing_channel_is_not_attempted_for_each_of_its_messages():
    """Each attempt may take the timeout of the channel."""
    channel = BrokenChannel(away(reason="timeout"))
    desk = Desk({"im": channel}, {}, *notes(15))
    desk.delivery.run_once()
    assert channel.attempts == 2
    channel.fault = None
    desk.run_for(MINUTE)
    assert len(channel.sent) == 15


def test_one_rejected_message_does_not_stop_the_others():
    channel = Channel(away(retryable=False), away(retryable=False), away(retryable=False))
    desk = Desk({"im": channel}, {}, *notes(5))
    desk.delivery.run_once()
    assert channel.ids == ["n-003", "n-004"]
    assert [letter.message.id for letter in desk.state.dead_letters()] == ["n-002", "n-001", "n-000"]


def test_an_error_in_a_notifier_is_the_failure_of_its_message_only():
    channel = Channel(KeyError("title"))
    desk = Desk({"im": channel}, {}, *notes(2))
    desk.delivery.run_once()
    assert channel.ids == ["n-001"]
    assert "internal error (KeyError)" in desk.state.dead_letters()[0].error


def test_a_page_reaches_the_fallback_at_once_and_says_so():
    first, second = BrokenChannel(away()), Channel()
    policies = {"im": ChannelPolicy(fallback="mail")}
    desk = Desk({"im": first, "mail": second}, policies, PAGE)
    desk.delivery.run()
    assert second.sent[0].id == "m-1:fallback:mail"
    assert "the channel im cannot deliver it" in second.sent[0].body
    assert second.sent[0].is_page
    (record,) = desk.audited("fallback_used")
    assert (record.subject, record.reason, record.detail["to"]) == ("m-1", "refused", "mail")
    first.fault = None
    desk.run_for(5 * MINUTE)
    assert first.ids == ["m-1"], "the channel itself receives it later"
    assert len(second.sent) == 1, "the fallback receives it once"
    assert len(desk.audited("fallback_used")) == 1


def test_a_shared_page_is_one_alert_for_each_incident_on_a_fallback_that_ends_them_one_by_one():
    pager = Channel()
    shared = replace(PAGE, also=("inc-2",), link="https://o.example/incident?incident=inc-1")
    policies = {"im": ChannelPolicy(fallback="pager"), "pager": ChannelPolicy(merges=False)}
    desk = Desk({"im": BrokenChannel(away()), "pager": pager}, policies, shared)
    desk.run_for(timedelta(seconds=5))
    assert [(copy.incident, copy.also) for copy in pager.sent] == [("inc-1", ()), ("inc-2", ())]
    assert [copy.link[-5:] for copy in pager.sent] == ["inc-1", "inc-2"]
    assert len(desk.audited("fallback_used")) == 2


def test_a_page_of_a_paused_channel_reaches_the_fallback_at_once():
    first, second = Channel(away(retry_after=10 * MINUTE)), Channel()
    desk = Desk({"im": first, "mail": second}, {"im": ChannelPolicy(fallback="mail")}, NOTE)
    desk.delivery.run_once()
    desk.add(replace(PAGE, created_at=desk.clock.now()))
    desk.delivery.run_once()
    desk.delivery.run_once()
    assert second.ids == ["m-1:fallback:mail"]
    assert first.attempts == 1


def test_other_messages_reach_the_fallback_after_minutes_of_failures():
    first, second = BrokenChannel(away()), Channel()
    policies = {"im": ChannelPolicy(fallback="mail", fallback_after=5 * MINUTE)}
    desk = Desk({"im": first, "mail": second}, policies, NOTE)
    desk.run_for(4 * MINUTE)
    assert second.sent == []
    later = replace(NOTE, id="n-2", incident="inc-3", created_at=desk.clock.now())
    desk.add(later)
    desk.run_for(7 * MINUTE)
    assert set(second.ids) == {"n-1:fallback:mail", "n-2:fallback:mail"}
    assert len(second.ids) == 2


def test_a_final_failure_reaches_the_fallback_at_once():
    second = Channel()
    policies = {"im": ChannelPolicy(fallback="mail")}
    desk = Desk({"im": Channel(away(retryable=False)), "mail": second}, policies, NOTE)
    desk.delivery.run()
    assert second.ids == ["n-1:fallback:mail"]
    assert [letter.message.id for letter in desk.state.dead_letters()] == ["n-1"]


def test_fallbacks_that_name_each_other_end():
    policies = {"im": ChannelPolicy(fallback="mail"), "mail": ChannelPolicy(fallback="im")}
    gone = away(retryable=False)
    desk = Desk({"im": BrokenChannel(gone), "mail": BrokenChannel(gone)}, policies, PAGE)
    desk.run_for(10 * MINUTE)
    assert {letter.message.id for letter in desk.state.dead_letters()} == {"m-1", "m-1:fallback:mail"}


def test_a_fallback_that_received_the_first_message_also_receives_the_end():
    first, second = BrokenChannel(away()), Channel()
    desk = Desk({"im": first, "mail": second}, {"im": ChannelPolicy(fallback="mail")}, PAGE)
    desk.delivery.run_once()
    first.fault = None
    desk.run_for(2 * MINUTE)
    end = replace(PAGE, id="m-2", reason=NotifyReason.RESOLVED, created_at=desk.clock.now(), is_page=False)
    other = replace(end, id="m-3", incident="inc-9")
    desk.add(end, other)
    desk.run_for(MINUTE)
    assert second.ids == ["m-1:fallback:mail", "m-2:fallback:mail"]


def test_a_message_is_given_up_after_a_day_and_may_be_retried_by_hand():
    channel = BrokenChannel(away())
    desk = Desk({"im": channel}, {}, NOTE)
    desk.run_for(timedelta(hours=25), step=5 * MINUTE)
    (letter,) = desk.state.dead_letters()
    assert (letter.message.id, letter.error) == ("n-1", "the channel is away")
    assert letter.attempts > 20
    channel.fault = None
    assert desk.state.retry_message("n-1", "ann", desk.clock.now())
    desk.delivery.run_once()
    assert channel.ids == ["n-1"]


def test_a_channel_down_for_an_hour_delivers_all_in_order_afterwards():
    channel = BrokenChannel(away())
    desk = Desk({"im": channel}, {}, PAGE)
    desk.run_for(20 * MINUTE)
    desk.add(replace(PAGE, id="m-2", reason=NotifyReason.REPEAT, created_at=desk.clock.now()))
    desk.run_for(20 * MINUTE)
    desk.add(replace(PAGE, id="m-3", reason=NotifyReason.RESOLVED, created_at=desk.clock.now()))
    desk.run_for(20 * MINUTE)
    channel.fault = None
    desk.run_for(15 * MINUTE)
    assert channel.ids == ["m-1", "m-2", "m-3"]


def test_an_urgent_message_is_retried_at_least_every_minute():
    channel = BrokenChannel(away())
    desk = Desk({"im": channel}, {}, PAGE)
    desk.run_for(timedelta(hours=1))
    assert channel.attempts >= 60


@pytest.mark.parametrize("step", [timedelta(hours=-1), timedelta(hours=1)])
def test_a_clock_that_steps_delays_no_retry(step):
    channel = Channel(away())
    desk = Desk({"im": channel}, {}, PAGE)
    desk.delivery.run_once()
    desk.clock.set(desk.clock.now() + step)
    desk.clock.advance(timedelta(seconds=6))
    desk.delivery.run_once()
    assert channel.ids == ["m-1"]
    later = replace(PAGE, id="m-2", incident="inc-2", created_at=desk.clock.now())
    desk.add(later)
    desk.delivery.run_once()
    assert channel.ids == ["m-1", "m-2"]
    assert all(record.at <= desk.clock.now() for record in desk.state.audit())


def test_later_messages_of_an_incident_follow_the_first_in_its_thread():
    channel = ThreadChannel()
    desk = Desk({"im": channel}, {}, PAGE, NOTE)
    desk.delivery.run_once()
    desk.add(replace(PAGE, id="m-2", reason=NotifyReason.RESOLVED))
    desk.delivery.run_once()
    receipts = {record.subject: record.detail["receipt"] for record in desk.audited("message_delivered")}
    assert receipts["m-2"] == "in the thread of receipt 1"


def test_a_killed_delivery_is_repeated_once():
    channel = Channel()
    desk = Desk({"im": channel}, {}, PAGE)
    desk.state.claim_messages("killed", NOW, LEASE)
    assert desk.delivery.run_once() == 0
    desk.clock.advance(LEASE)
    assert desk.delivery.run_once() == 1
    assert channel.ids == ["m-1"]


class SlowChannel(Channel):
    """A channel whose delivery ends once another channel has delivered."""

    def __init__(self, other) -> None:
        super().__init__()
        self.other, self.delivered = other, threading.Event()

    def send(self, message):
        self.other()
        assert self.delivered.wait(10), "a slow channel delays the others"
        return super().send(message)


@pytest.mark.parametrize("check_again", [0.01, 60.0])
def test_a_slow_channel_does_not_delay_a_page_on_another_one(check_again):
    class Phone(Channel):
        def send(self, message):
            slow.delivered.set()
            return super().send(message)

    def decide():
        state.commit(CycleCommit(RECORD, messages=(page,)))
        if check_again == 60.0:
            delivery.wake()
            delivery.wake()

    state, phone = MemoryStateStore(), Phone()
    page = replace(PAGE, channel="phone")
    slow = SlowChannel(decide)
    delivery = MessageDelivery(state, {"im": slow, "phone": phone}, SystemClock(), "one", check_again=check_again)
    state.commit(CycleCommit(RECORD, messages=(NOTE,)))
    assert delivery.run() == 2
    assert (phone.ids, slow.ids) == (["m-1"], ["n-1"])


def test_a_new_page_is_sent_before_the_rest_of_what_its_channel_has_claimed():
    class Chat(Channel):
        def send(self, message):
            if not self.sent:
                state.commit(CycleCommit(RECORD, messages=(PAGE,)))
                delivery.wake()
            return super().send(message)

    state, chat, clock = MemoryStateStore(), Chat(), ManualClock(NOW)
    delivery = MessageDelivery(state, {"im": chat}, clock, "one")
    state.commit(CycleCommit(RECORD, messages=notes(3)))
    delivery.run()
    clock.advance(timedelta(seconds=1))
    delivery.run()
    assert chat.ids == ["n-000", "m-1", "n-001", "n-002"]


def test_a_process_that_stops_does_not_wait_for_a_backlog():
    class Chat(Channel):
        def send(self, message):
            assert seen.wait(10), "the delivery does not look whether the process stops"
            return super().send(message)

    calls, seen = [], threading.Event()

    def stopping():
        calls.append(None)
        if len(calls) == 3:
            seen.set()
        return len(calls) > 1

    state, chat = MemoryStateStore(), Chat()
    delivery = MessageDelivery(state, {"im": chat}, SystemClock(), "one", check_again=0.01)
    state.commit(CycleCommit(RECORD, messages=notes(3)))
    delivery.run(stopping)
    assert chat.ids == ["n-000"]
    assert state.claim_messages("two", SystemClock().now() + MINUTE, LEASE)[0].id == "n-001"


def test_a_slow_channel_does_not_keep_a_limited_one_from_sending_on():
    class Limited(Channel):
        def send(self, message):
            if len(self.sent) == 2:
                slow.delivered.set()
            return super().send(message)

    state, limited = MemoryStateStore(), Limited()
    slow = SlowChannel(lambda: None)
    policies = {"mail": ChannelPolicy(RateLimit(1, timedelta(milliseconds=100)))}
    delivery = MessageDelivery(state, {"im": slow, "mail": limited}, SystemClock(), "one", policies)
    state.commit(CycleCommit(RECORD, messages=(NOTE, *notes(3, channel="mail"))))
    assert delivery.run() == 4


def test_a_run_ends_while_a_channel_is_at_its_limit():
    channel = Channel()
    desk = Desk({"im": channel}, {"im": ChannelPolicy(RateLimit(1, MINUTE), merges=False)}, *notes(3))
    assert desk.delivery.run() == 1
    assert desk.delivery.run() == 0


def test_an_error_of_the_store_ends_the_run_and_is_raised():
    class BrokenStore(MemoryStateStore):
        def deliver_messages(self, message_ids, receipt, now, follow_ups=()):
            raise StoreError("disk full")

    state = BrokenStore()
    state.commit(CycleCommit(RECORD, messages=(PAGE,)))
    with pytest.raises(StoreError, match="disk full"):
        MessageDelivery(state, {"im": Channel()}, ManualClock(NOW), "one").run()
