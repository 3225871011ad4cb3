"""All channel types: their factories, what they can do, and their limits. A new channel is a new row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from alerts.notify import (
    alertmanager,
    apprise,
    dingtalk,
    email,
    feishu,
    opsgenie,
    pagerduty,
    phone,
    teams,
    webhook,
    wecom,
)
from alerts.notify.aliyun import sms as aliyun_sms
from alerts.notify.aliyun import voice as aliyun_voice
from alerts.notify.slack import bot as slack_bot
from alerts.notify.slack import webhook as slack_webhook
from alerts.notify.tencent import sms as tencent_sms
from alerts.notify.tencent import voice as tencent_voice
from alerts.notify.twilio import sms as twilio_sms
from alerts.notify.twilio import voice as twilio_voice
from outrider.model import Message, RateLimit
from outrider.ports import Notifier

_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class Reach(StrEnum):
    """How a channel reaches people."""

    PHONE = "phone"
    SMS = "sms"
    ON_CALL = "on-call service"
    CHAT = "chat"
    MAIL = "mail"
    PROGRAM = "program"


class Buttons(StrEnum):
    """How a channel shows the buttons of a message."""

    BUTTONS = "buttons"
    LINKS = "links"
    DATA = "data"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ChannelType:
    """One type of channel.

    ``limit`` is that of the vendor, or ours if ``limit_is_ours``; None: unlimited. ``merges``: messages that wait for
    the limit become one, and so do simultaneous pages; False for a channel that holds one alert for each incident.
    ``accepts`` is False for messages that the channel does not send. ``tracks``: the channel shows the state of an
    incident, and receives acknowledgements. ``marked`` builds a notifier whose posts name their origin, so that an
    Outrider recognizes its own if they come back.
    """

    build: Callable[[Mapping[str, Any]], Notifier]
    keys: tuple[str, ...]
    reach: Reach
    buttons: Buttons
    size: str
    limit: RateLimit | None = None
    limit_is_ours: bool = False
    merges: bool = True
    mentions: bool = False
    edits: bool = False
    tracks: bool = False
    accepts: Callable[[Message], bool] | None = None
    marked: Callable[[Mapping[str, Any], str], Notifier] | None = None

    def notifier(self, values: Mapping[str, Any], origin: str) -> Notifier:
        """A notifier with these keys. What it posts to programs names the ``origin``. Raises ConfigError."""
        return self.build(values) if self.marked is None else self.marked(values, origin)


NOTIFIERS: dict[str, ChannelType] = {
    "dingtalk": ChannelType(
        dingtalk.from_settings,
        dingtalk.KEYS,
        Reach.CHAT,
        Buttons.BUTTONS,
        "20,000 bytes",
        RateLimit(20, _MINUTE),
        mentions=True,
    ),
    "feishu": ChannelType(
        feishu.from_settings,
        feishu.KEYS,
        Reach.CHAT,
        Buttons.BUTTONS,
        "20,000 bytes",
        RateLimit(5, 3 * _SECOND),
        mentions=True,
    ),
    "wecom": ChannelType(
        wecom.from_settings, wecom.KEYS, Reach.CHAT, Buttons.LINKS, "4,096 bytes", RateLimit(20, _MINUTE), mentions=True
    ),
    "slack": ChannelType(
        slack_webhook.from_settings,
        slack_webhook.KEYS,
        Reach.CHAT,
        Buttons.BUTTONS,
        "3,000 characters",
        RateLimit(1, _SECOND),
        mentions=True,
    ),
    "slack_bot": ChannelType(
        slack_bot.from_settings,
        slack_bot.KEYS,
        Reach.CHAT,
        Buttons.BUTTONS,
        "3,000 characters",
        RateLimit(5, 6 * _SECOND),  # of its updates, 50 a minute; of its messages, one a second with short bursts
        mentions=True,
        edits=True,
        tracks=True,
    ),
    "teams": ChannelType(teams.from_settings, teams.KEYS, Reach.CHAT, Buttons.BUTTONS, "28 KB", RateLimit(4, _SECOND)),
    "email": ChannelType(
        email.from_settings,
        email.KEYS,
        Reach.MAIL,
        Buttons.LINKS,
        "100,000 characters",
        RateLimit(30, _MINUTE),
        limit_is_ours=True,
    ),
    "webhook": ChannelType(
        webhook.from_settings,
        webhook.KEYS,
        Reach.PROGRAM,
        Buttons.DATA,
        "4,096 characters a label",
        marked=webhook.from_settings,
    ),
    "pagerduty": ChannelType(
        pagerduty.from_settings,
        pagerduty.KEYS,
        Reach.ON_CALL,
        Buttons.LINKS,
        "1,024 characters of summary, 512 KB",
        merges=False,
        tracks=True,
    ),
    "opsgenie": ChannelType(
        opsgenie.from_settings,
        opsgenie.KEYS,
        Reach.ON_CALL,
        Buttons.LINKS,
        "130 characters of message, 15,000 of description",
        merges=False,
        tracks=True,
    ),
    "aliyun_sms": ChannelType(
        aliyun_sms.from_settings,
        aliyun_sms.KEYS,
        Reach.SMS,
        Buttons.NONE,
        "35 characters a variable",
        RateLimit(5, _MINUTE),
        limit_is_ours=True,
        accepts=phone.is_sms,
    ),
    "aliyun_voice": ChannelType(
        aliyun_voice.from_settings,
        aliyun_voice.KEYS,
        Reach.PHONE,
        Buttons.NONE,
        "249 characters of variables",
        RateLimit(1, _MINUTE),
        accepts=phone.is_call,
    ),
    "tencent_sms": ChannelType(
        tencent_sms.from_settings,
        tencent_sms.KEYS,
        Reach.SMS,
        Buttons.NONE,
        "12 characters a parameter",
        RateLimit(5, _MINUTE),
        limit_is_ours=True,
        accepts=phone.is_sms,
    ),
    "tencent_voice": ChannelType(
        tencent_voice.from_settings,
        tencent_voice.KEYS,
        Reach.PHONE,
        Buttons.NONE,
        "350 characters a call",
        RateLimit(1, _MINUTE),
        limit_is_ours=True,
        accepts=phone.is_call,
    ),
    "twilio_sms": ChannelType(
        twilio_sms.from_settings,
        twilio_sms.KEYS,
        Reach.SMS,
        Buttons.NONE,
        "1,600 characters",
        RateLimit(5, _MINUTE),
        limit_is_ours=True,
        accepts=phone.is_sms,
    ),
    "twilio_voice": ChannelType(
        twilio_voice.from_settings,
        twilio_voice.KEYS,
        Reach.PHONE,
        Buttons.NONE,
        "4,000 characters of TwiML",
        RateLimit(1, _MINUTE),
        limit_is_ours=True,
        accepts=phone.is_call,
    ),
    "alertmanager": ChannelType(
        alertmanager.from_settings,
        alertmanager.KEYS,
        Reach.PROGRAM,
        Buttons.NONE,
        "500 characters a label",
        merges=False,
        tracks=True,
        marked=alertmanager.from_settings,
    ),
    "apprise": ChannelType(
        apprise.from_settings,
        apprise.KEYS,
        Reach.CHAT,
        Buttons.LINKS,
        "8,000 characters",
        RateLimit(20, _MINUTE),
        limit_is_ours=True,
    ),
}
