"""The limits that vendors document, held by a delivery that always has more to send than they allow."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from alerts.notify.registry import NOTIFIERS
from outrider.clock import ManualClock
from outrider.model import CycleRecord, NotifyReason, Priority
from outrider.ports import CycleCommit
from service.config.notify_settings import NotifySettings
from service.engine.delivery import MessageDelivery
from store.memory import MemoryStateStore
from tests.support.messages import a_message
from tests.support.vendors import chat
from tests.support.vendors.server import serving

SECONDS = 90


@pytest.mark.slow
@pytest.mark.parametrize("kind", [chat.DingTalk, chat.Feishu, chat.WeCom, chat.SlackWebhook, chat.SlackBot, chat.Teams])
@pytest.mark.parametrize("each_second", [1, 5])
def test_a_channel_holds_the_limit_of_its_vendor(kind, each_second):
    clock = ManualClock(datetime.now(UTC))
    state, name = MemoryStateStore(), kind.channel_type
    with serving(kind(clock)) as vendor:
        channel = {"type": name, **vendor.settings()}
        policies = NotifySettings.model_validate({"channels": {name: channel}}).policies()
        notifiers = {name: NOTIFIERS[name].build(vendor.settings())}
        delivery = MessageDelivery(state, notifiers, clock, "one", policies)
        for number in range(SECONDS * each_second):
            incident, follows = f"inc-{number % 10}", number >= 10
            message = replace(
                a_message("en"), id=f"m-{number:04}", channel=name, incident=incident, created_at=clock.now(),
                priority=Priority.P1 if number % 3 else Priority.P2, is_page=not follows and bool(number % 3),
                reason=NotifyReason.PRIORITY_RAISED if follows else NotifyReason.OPENED,
            )  # fmt: skip
            record = CycleRecord("cycle", clock.now(), 0.1, 1, 1, 1, 0, 0, 0)
            state.commit(CycleCommit(record, messages=(message,)))
            delivery.run_once()
            clock.advance(timedelta(seconds=1) / each_second)
        assert vendor.rejected == []
        limit = policies[name].limit
        most = (SECONDS - 1) // limit.per.total_seconds() * limit.count
        assert len(vendor.accepted) >= min(most, SECONDS * each_second) // 2
