"""SMS and calls: which messages they deliver, the values of vendor templates, and several numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from alerts.notify import settings
from alerts.notify.text import one_line, short_text, shorten
from outrider import log
from outrider.errors import DeliveryError
from outrider.model import Fact, Message, NotifyReason, Priority, Receipt

_log = log.get("notify")
SHORT_TEXT = "text"  # the whole short text as one value
VALUES = ("priority", *(fact.value for fact in Fact), "title", "incident", SHORT_TEXT)
_CALLING = frozenset({NotifyReason.PRIORITY_RAISED, NotifyReason.REPEAT, NotifyReason.ASSIGNED, NotifyReason.TEST})
_NO_SMS = frozenset(
    {
        NotifyReason.STATUS,
        NotifyReason.MOVED,
        NotifyReason.SHIFT_SUMMARY,
        NotifyReason.REPORT,
        NotifyReason.ACKNOWLEDGED,
    }
)
_TEXT_LIMIT = 500
_LINK = re.compile(r"\w+://\S*")  # vendors reject links in template parameters


def is_call(message: Message) -> bool:
    """True for a message that calls: a page of a P0, its reminders, and a test. The end of an incident never calls.

    So does an escalation of a P1 whose ladder names the route of this channel.
    """
    if message.reason is NotifyReason.ESCALATED:
        return message.rank <= Priority.P1.rank
    return message.priority is Priority.P0 and (message.is_page or message.reason in _CALLING)


def is_sms(message: Message) -> bool:
    """True for a message that is sent as SMS: everything but progress, acknowledgements and reports."""
    return message.reason not in _NO_SMS


def template_value(message: Message, name: str, limit: int) -> str:
    """The value of a template parameter, at most ``limit`` characters. Vendors reject empty values."""
    if name == SHORT_TEXT:
        return shorten(_LINK.sub("…", short_text(message, _TEXT_LIMIT)), limit, "…")
    known = {
        "priority": message.priority.value if message.priority else "",
        "title": message.title,
        "incident": message.incident or "",
        **{fact.value: text for fact, text in message.facts.items()},
    }
    fallback = message.title if name == Fact.WHAT else "-"
    text = _LINK.sub("…", one_line(known.get(name, "")) or one_line(fallback) or "-")
    if name == Fact.WHERE and len(text) > limit:
        return "…" + text[len(text) - limit + 1 :]  # the end of a name distinguishes entities
    return shorten(text, limit, "…")


def template_values(message: Message, names: Iterable[str], each: int, total: int | None = None) -> list[str]:
    """The values of template parameters, ``total`` characters in all."""
    known = list(names)
    values = [template_value(message, name, each) for name in known]
    if total is not None and sum(map(len, values)) > total:
        values = [template_value(message, name, total // len(known)) for name in known]
    return values


def parameters(channel: str, values: Mapping[str, Any], default: Mapping[str, str]) -> dict[str, str]:
    """``template_parameters``: from the vendor's parameter names to ours; a list for parameters by position."""
    given = values.get("template_parameters", default)
    if isinstance(given, list):
        given = {str(number): name for number, name in enumerate(given, start=1)}
    if not isinstance(given, Mapping):
        raise settings.wrong(channel, "template_parameters", "a map or a list")
    result = {str(parameter): str(name) for parameter, name in given.items()}
    unknown = sorted(set(result.values()) - set(VALUES))
    if unknown:
        hint = f"values are {', '.join(VALUES)}"
        text = f"template_parameters of the {channel} channel has no value {unknown[0]!r}"
        raise settings.ChannelSettingError(text, "template_parameters", hint=hint)
    return result


def to_each(message: Message, numbers: Iterable[str], send: Callable[[str], str]) -> Receipt:
    """Sends to every number. Succeeds if one of them was accepted; raises the error that is most worth a retry.

    The receipt names the other numbers that are worth a retry.
    """
    receipts: list[str] = []
    errors: dict[str, DeliveryError] = {}
    for number in numbers:
        try:
            receipts.append(send(number))
        except DeliveryError as error:
            errors[number] = error
            _log.warning("number_failed", message=message.id, channel=message.channel, reason=error.reason)
    if receipts:
        return Receipt(" ".join(receipts)[:_TEXT_LIMIT], unreached=worth_a_retry(errors))
    raise max(errors.values(), key=lambda error: error.retryable)


def worth_a_retry(errors: Mapping[str, DeliveryError]) -> tuple[str, ...]:
    """The numbers whose error may pass."""
    return tuple(number for number, error in errors.items() if error.retryable)
