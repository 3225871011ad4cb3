"""Channels deliver to the people whom a message names, else to those of their own configuration."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest

from alerts.notify import phone, recipients
from alerts.notify.registry import NOTIFIERS, Reach
from alerts.routing.fallback import fallback_copies
from alerts.routing.merging import merge
from outrider.model import ButtonAction, ChannelPolicy, NotifyReason, Priority, Recipient
from tests.contracts.test_notifiers import Channel
from tests.support.messages import NOW, a_message

LI = Recipient("li", ("17700000007",), "+86 177-0000-0007", "li@example.com")
WANG = Recipient("wang")
PHONES = [name for name, kind in NOTIFIERS.items() if kind.reach in (Reach.PHONE, Reach.SMS)]
MENTIONING = ["dingtalk", "feishu", "wecom", "slack", "slack_bot"]


@pytest.fixture
def channel_of():
    with ExitStack() as stack:
        yield lambda name: Channel(name, stack)


def sent_by(channel, *people, **fields):
    """What the vendor accepted of a message to these people."""
    channel.notifier().send(a_message("en", recipients=people, **fields))
    assert not channel.vendor or channel.vendor.rejected == []
    return str(channel.mail.parsed[-1]["To"] if channel.mail else channel.vendor.accepted)


@pytest.mark.parametrize("name", PHONES)
def test_a_call_or_sms_goes_to_the_named_people_alone(channel_of, name):
    accepted = sent_by(channel_of(name), LI, WANG)
    assert "17700000007" in accepted
    assert "1380000" not in accepted


@pytest.mark.parametrize("name", PHONES)
def test_people_without_a_number_are_reached_by_the_configured_ones(channel_of, name):
    assert "1380000" in sent_by(channel_of(name), WANG)


def test_a_mail_goes_to_the_named_people_alone(channel_of):
    assert sent_by(channel_of("email"), LI, WANG) == "li@example.com"
    assert sent_by(channel_of("email"), WANG) == "oncall@example.com"


@pytest.mark.parametrize("name", MENTIONING)
@pytest.mark.parametrize("reason", [NotifyReason.OPENED, NotifyReason.ESCALATED, NotifyReason.ASSIGNED])
def test_a_page_and_an_escalation_mention_the_named_people(channel_of, name, reason):
    accepted = sent_by(channel_of(name), LI, reason=reason, is_page=reason is NotifyReason.OPENED, incident=None)
    assert "17700000007" in accepted


@pytest.mark.parametrize("name", MENTIONING)
@pytest.mark.parametrize("reason", [NotifyReason.STATUS, NotifyReason.RESOLVED, NotifyReason.MOVED])
def test_other_messages_mention_nobody(channel_of, name, reason):
    accepted = sent_by(channel_of(name), LI, reason=reason, is_page=False, incident=None)
    assert "17700000007" not in accepted


def test_without_own_mentions_a_page_mentions_the_configured_people():
    page = a_message(recipients=(WANG,))
    assert recipients.mentions(page, ("all",)) == ("all",)
    assert recipients.mentions(replace(page, is_page=False, reason=NotifyReason.ESCALATED), ("all",)) == ()


def test_a_webhook_has_the_recipients_with_their_addresses(channel_of):
    channel = channel_of("webhook")
    channel.notifier().send(a_message(recipients=(LI, WANG)))
    [document] = channel.vendor.accepted
    assert document["recipients"] == [
        {"name": "li", "mentions": ["17700000007"], "phone": "+86 177-0000-0007", "email": "li@example.com"},
        {"name": "wang", "mentions": [], "phone": "", "email": ""},
    ]


@pytest.mark.parametrize(
    ("reason", "priority", "calls"),
    [
        (NotifyReason.ESCALATED, Priority.P0, True),
        (NotifyReason.ESCALATED, Priority.P1, True),
        (NotifyReason.ESCALATED, Priority.P2, False),
        (NotifyReason.ASSIGNED, Priority.P0, True),
        (NotifyReason.MOVED, Priority.P0, False),
        (NotifyReason.SHIFT_SUMMARY, None, False),
    ],
)
def test_an_escalation_calls_and_a_summary_does_not(reason, priority, calls):
    message = a_message(reason=reason, priority=priority, is_page=False)
    assert phone.is_call(message) is calls
    assert phone.is_sms(message) is (reason not in (NotifyReason.MOVED, NotifyReason.SHIFT_SUMMARY))


def test_a_fallback_mentions_nobody_of_the_failed_channel():
    (copy,) = fallback_copies(a_message(recipients=(LI,)), ChannelPolicy(fallback="sms"), NOW)
    assert copy.recipients == (replace(LI, mentions=()),)
    assert ButtonAction.ACKNOWLEDGE in {button.action for button in copy.buttons}


def test_the_fallback_of_a_mail_to_one_person_has_no_button_under_the_name_of_that_person():
    (copy,) = fallback_copies(a_message(recipients=(LI,)), ChannelPolicy(fallback="ding", personal=True), NOW)
    assert {button.action for button in copy.buttons} <= {ButtonAction.OPEN}


def test_merged_messages_go_to_the_people_of_all():
    merged = merge([a_message(recipients=(LI,)), a_message(id="b", recipients=(WANG, LI))])
    assert merged.recipients == (LI, WANG)
    assert merged.buttons == ()
