"""The merging queue against a vendor that locks a channel above its limit, and deliveries that are killed."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from alerts.notify import dingtalk, wecom
from alerts.notify.registry import NOTIFIERS
from outrider.clock import ManualClock
from outrider.model import ChannelPolicy, CycleRecord, NotifyReason, Priority, RateLimit, Receipt
from outrider.ports import CycleCommit
from service.engine.delivery import LEASE, MessageDelivery
from store.memory import MemoryStateStore
from tests.support.json_server import Response
from tests.support.messages import NOW, a_message
from tests.support.vendors import chat
from tests.support.vendors.server import serving

RECORD = CycleRecord("cycle", NOW, 0.1, 1, 1, 1, 0, 0, 0)
MINUTE = timedelta(minutes=1)


def storm(count, at=NOW, first=0):
    """Messages of many incidents: one in ten is a P0, two are P1."""
    priorities = (Priority.P0, Priority.P1, Priority.P1, *(Priority.P2,) * 7)
    return tuple(
        a_message(
            "en", id=f"inc-{number}:opened", incident=f"inc-{number}", title=f"number {number}.",
            priority=priorities[number % 10], created_at=at, is_page=False, body="b", link=f"https://o.example/{number}",
        )
        for number in range(first, first + count)
    )  # fmt: skip


def delivered_ids(state):
    records = [record for record in state.audit(limit=100_000) if record.event == "message_delivered"]
    return Counter(name for record in records for name in (record.detail.get("messages") or record.subject).split())


@pytest.mark.parametrize("kind", [chat.DingTalk, chat.WeCom])
def test_a_storm_never_exceeds_the_limit_of_the_vendor_and_loses_nothing(kind):
    clock = ManualClock(NOW)
    with serving(kind(clock)) as vendor:
        values = vendor.settings()
        if kind is chat.DingTalk:
            notifier = dingtalk.DingTalkNotifier(values["url"], secret=values["secret"], clock=clock)
        else:
            notifier = wecom.WeComNotifier(values["url"])
        state = MemoryStateStore()
        policy = ChannelPolicy(NOTIFIERS[vendor.channel_type].limit)
        delivery = MessageDelivery(state, {"im": notifier}, clock, "one", {"im": policy})
        for wave in range(3):
            state.commit(CycleCommit(RECORD, messages=storm(100, clock.now(), 100 * wave)))
            for _ in range(8):
                delivery.run_once()
                clock.advance(timedelta(seconds=5))
        for _ in range(60):
            delivery.run_once()
            clock.advance(timedelta(seconds=5))
        assert vendor.rejected == []
        texts = vendor.texts
    assert len(texts) < 100, "300 messages"
    assert delivered_ids(state) == {f"inc-{number}:opened": 1 for number in range(300)}
    urgent = [number for number in range(100) if number % 10 < 3]
    first_merged = next(index for index, text in enumerate(texts) if "notifications at once" in text)
    assert first_merged >= 15, "urgent messages are sent first, one by one"
    for number in urgent:
        assert any(f"number {number}." in text for text in texts[: first_merged + 1])


def test_a_vendor_that_locks_the_channel_is_left_alone_until_it_unlocks():
    clock = ManualClock(NOW)
    with serving(chat.DingTalk(clock)) as vendor:
        values = vendor.settings()
        vendor.script = [Response(200, {"errcode": 130101, "errmsg": "send too fast"})]
        notifier = dingtalk.DingTalkNotifier(values["url"], secret=values["secret"], clock=clock)
        state = MemoryStateStore()
        delivery = MessageDelivery(state, {"im": notifier}, clock, "one")
        state.commit(CycleCommit(RECORD, messages=storm(5)))
        for _ in range(10):
            delivery.run_once()
            clock.advance(timedelta(seconds=59))
        assert len(vendor.requests) == 1
        clock.advance(MINUTE)
        delivery.run_once()
        assert len(vendor.accepted) == 5


class KilledError(BaseException):
    """The process ends here."""


class World:
    """A store and a channel that end the process before or after their n-th operation."""

    def __init__(self, kill_at, messages) -> None:
        self.operations, self.kill_at = 0, kill_at
        self.received: list[tuple[str, ...]] = []
        self.state = MemoryStateStore()
        self.state.commit(CycleCommit(RECORD, messages=messages))
        self.state.finish_message = self.deadly(self.state.finish_message)
        self.state.deliver_messages = self.deadly(self.state.deliver_messages)

    def deadly(self, method):
        def operate_around(*args, **kwargs):
            self.operate()
            result = method(*args, **kwargs)
            self.operate()
            return result

        return operate_around

    def operate(self):
        self.operations += 1
        if self.operations == self.kill_at:
            raise KilledError

    def send(self, message):
        self.operate()
        self.received.append((message.incident,) if message.incident else message.also)
        self.operate()
        return Receipt()


def deliver(kill_at):
    """Delivers 2 pages and 6 other messages with a limit of 4; the process dies once and starts again."""
    pages = [replace(message, priority=Priority.P0) for message in storm(2, first=1000)]
    others = [replace(message, priority=Priority.P2, reason=NotifyReason.OPENED) for message in storm(6)]
    world, clock = World(kill_at, (*pages, *others)), ManualClock(NOW)
    policies = {"im": ChannelPolicy(RateLimit(4, MINUTE))}
    delivery = MessageDelivery(world.state, {"im": world}, clock, "one", policies)
    with suppress(KilledError):
        delivery.run_once()
    clock.advance(LEASE)
    restarted = MessageDelivery(world.state, {"im": world}, clock, "two", policies)
    for _ in range(30):
        restarted.run_once()
        clock.advance(timedelta(seconds=10))
    return world


def test_a_kill_at_any_instant_duplicates_one_message_at_most():
    operations = deliver(kill_at=0).operations
    assert operations >= 12, "2 pages and a merged message are sent and recorded, each with two instants"
    for kill_at in range(1, operations + 1):
        world = deliver(kill_at)
        received = {name for names in world.received for name in names}
        assert received == {f"inc-{number}" for number in (*range(6), 1000, 1001)}, f"lost at {kill_at}"
        repeated = [
            names for index, names in enumerate(world.received) if set(names) & set(sum(world.received[:index], ()))
        ]
        assert len(repeated) <= 1, f"more than one duplicate at {kill_at}"
