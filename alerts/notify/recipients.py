"""The addresses of the people whom a message names, or those of the channel's own configuration."""

from __future__ import annotations

import re

from outrider.model import Message, NotifyReason

_PUNCTUATION = re.compile(r"[ ()-]")
_MAINLAND = re.compile(r"^\+86(\d{11})$")
# Messages after the first page that a person must see, and that therefore mention the people whom they name.
_MENTIONING = frozenset(
    {
        NotifyReason.PRIORITY_RAISED,
        NotifyReason.REPEAT,
        NotifyReason.ESCALATED,
        NotifyReason.REROUTED,
        NotifyReason.ASSIGNED,
        NotifyReason.STEP_FAILED,
        NotifyReason.APPROVAL_WANTED,
    }
)


def mentions(message: Message, configured: tuple[str, ...]) -> tuple[str, ...]:
    """The user ids to mention: of the named people if any has one, else the configured ones, on a page only."""
    own = tuple(dict.fromkeys(user for recipient in message.recipients for user in recipient.mentions))
    if own:
        return own if message.is_page or message.reason in _MENTIONING else ()
    return configured if message.is_page else ()


def phones(message: Message, configured: tuple[str, ...], *, china: bool = False) -> tuple[str, ...]:
    """The phone numbers of the named people; the configured ones if none is known.

    They start with + and the country code, without spaces. With ``china`` a number of mainland China has neither.
    """
    numbers = (_PUNCTUATION.sub("", one.phone) for one in message.recipients if one.phone)
    own = [_MAINLAND.sub(r"\1", number).removeprefix("+") if china else number for number in numbers]
    return tuple(dict.fromkeys(own)) or configured


def addresses(message: Message, configured: tuple[str, ...]) -> tuple[str, ...]:
    """The e-mail addresses of the named people; the configured ones if none is known."""
    return tuple(dict.fromkeys(one.email for one in message.recipients if one.email)) or configured
