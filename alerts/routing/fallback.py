"""Copies of messages for the fallback of a channel that cannot deliver them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from alerts.routing.wording import localize
from outrider.model import Button, ButtonAction, ChannelPolicy, Message, NotifyReason
from outrider.text.i18n import supported

_ENDS = (NotifyReason.RESOLVED, NotifyReason.ACKNOWLEDGED)


def fallback_copies(
    message: Message, policy: ChannelPolicy, now: datetime, *, separate: bool = False
) -> tuple[Message, ...]:
    """The message for the fallback, with a line that names the failed channel; empty without another channel.

    ``separate``: the fallback holds one alert for each incident, so that a shared page becomes one message for each.
    """
    copy = _copied(message, policy, now)
    if copy is None:
        return ()
    line = localize("line.fallback", supported(message.language), channel=message.channel)
    copy = replace(copy, body=f"{line}\n{message.body}")
    if not separate or message.incident is None:
        return (copy,)
    return (replace(copy, also=()), *(_of_other(copy, message.incident, other) for other in message.also))


def _of_other(copy: Message, first: str, incident: str) -> Message:
    """The copy for another incident of a shared page. The buttons that act are those of the first one."""
    return replace(
        copy,
        id=f"{copy.id}:{incident}",
        incident=incident,
        also=(),
        link=copy.link.replace(first, incident) if copy.link else copy.link,
        buttons=(),
    )


def is_fallback_due(
    message: Message, policy: ChannelPolicy, now: datetime, failing_since: datetime | None, *, final: bool
) -> bool:
    """True if a message that failed goes to the fallback now.

    Urgent and finally failed messages do at once, others if they or their channel failed for ``fallback_after``.
    """
    if policy.fallback is None or message.reason is NotifyReason.TEST:
        return False
    since = min(message.created_at, failing_since or now)
    return final or message.is_urgent or now - since >= policy.fallback_after


def end_copy(message: Message, policy: ChannelPolicy, now: datetime, earlier: tuple[Message, ...]) -> Message | None:
    """The end of an incident for a fallback that received its first message; None for any other message.

    ``earlier`` are the messages of the incident.
    """
    if message.reason not in _ENDS or policy.fallback is None:
        return None
    received = any(copy.channel == policy.fallback and message.channel in copy.failed_channels for copy in earlier)
    return _copied(message, policy, now) if received else None


def _copied(message: Message, policy: ChannelPolicy, now: datetime) -> Message | None:
    channel, failed = policy.fallback, (*message.failed_channels, message.channel)
    if channel is None or channel in failed:
        return None
    name = f"{message.id}:fallback:{channel}"
    return replace(
        message,
        id=name,
        channel=channel,
        created_at=now,
        failed_channels=failed,
        recipients=tuple(replace(recipient, mentions=()) for recipient in message.recipients),
        buttons=_open_only(message.buttons) if policy.personal else message.buttons,
    )


def _open_only(buttons: tuple[Button, ...]) -> tuple[Button, ...]:
    """Without the buttons that act under the name of one person: several people may read the fallback."""
    return tuple(button for button in buttons if button.action is ButtonAction.OPEN)
