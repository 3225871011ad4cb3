"""The message again, for the phone numbers that failed while others were accepted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from alerts.notify import recipients
from outrider.model import Message, Recipient


def again_for(message: Message, numbers: Sequence[str]) -> Message:
    """The message for these numbers alone. Its age stays, so that it is given up at the same time."""
    people = [_person(message, number) for number in numbers]
    name = hashlib.sha256(" ".join(numbers).encode()).hexdigest()[:12]
    return replace(message, id=f"{message.id}:to:{name}", recipients=tuple(people))


def _person(message: Message, number: str) -> Recipient:
    """The recipient with this number; a number of the configuration belongs to nobody."""
    for one in message.recipients:
        own = replace(message, recipients=(one,))
        if number in (*recipients.phones(own, ()), *recipients.phones(own, (), china=True)):
            return one
    return Recipient("", phone=number)
