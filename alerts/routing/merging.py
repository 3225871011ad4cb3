"""What a channel sends when more messages wait than its limit allows: urgent ones first, the others merged to one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from alerts.routing.wording import localize
from outrider.documents.summaries import earliest
from outrider.model import Fact, Message, Priority
from outrider.text.i18n import Language, supported

MOST_LISTED = 30  # messages of a merged one that are listed; the audit record names all
_MOST_NAMED = 5  # places and services
_RESERVED = 4  # one slot of so many is kept for urgent messages


@dataclass(frozen=True, slots=True)
class DeliveryPlan:
    """What to send now, each batch as one message, and what has to wait."""

    batches: tuple[tuple[Message, ...], ...]
    waiting: tuple[Message, ...] = ()


def plan_deliveries(
    messages: Sequence[Message], slots: int | None, *, most: int = 0, merges: bool = True
) -> DeliveryPlan:
    """Distributes due messages over the free slots of a channel.

    ``slots`` None: unlimited. ``most`` is the limit of the channel; a quarter of it is reserved for urgent messages.
    Of too many urgent messages the last ones are merged, of too many others all. Nothing is left out.
    """
    ordered = _in_order(messages)
    if slots is None or len(ordered) <= max(0, slots - most // _RESERVED):
        return DeliveryPlan(tuple((message,) for message in ordered))
    urgent = [message for message in ordered if message.is_urgent]
    others = [message for message in ordered if not message.is_urgent]
    batches, waiting = _urgent_batches(urgent, slots, merges=merges)
    free = max(0, slots - len(batches) - most // _RESERVED)
    if len(others) <= free:
        batches += [(message,) for message in others]
    elif free and merges:
        batches.append(tuple(others))
    else:
        batches += [(message,) for message in others[:free]]
        waiting += others[free:]
    return DeliveryPlan(tuple(batches), tuple(waiting))


def _urgent_batches(
    urgent: Sequence[Message], slots: int, *, merges: bool
) -> tuple[list[tuple[Message, ...]], list[Message]]:
    if len(urgent) <= slots:
        return [(message,) for message in urgent], []
    single = slots - 1 if merges else slots
    batches: list[tuple[Message, ...]] = [(message,) for message in urgent[: max(0, single)]]
    rest = list(urgent[max(0, single) :])
    if merges and slots:
        return [*batches, tuple(rest)], []
    return batches, rest


def _in_order(messages: Sequence[Message]) -> list[Message]:
    """Urgent incidents first; the messages of one incident keep their order."""
    most_urgent: dict[str, int] = {}
    for message in messages:
        key = message.incident or message.id
        rank = message.rank if message.is_urgent else Priority.P3.rank + 1
        most_urgent[key] = min(rank, most_urgent.get(key, rank))
    return sorted(
        messages, key=lambda message: (most_urgent[message.incident or message.id], message.created_at, message.id)
    )


def merge(messages: Sequence[Message]) -> Message:
    """One message with the titles and links of all; at least two, from ``plan_deliveries``."""
    first = min(messages, key=lambda message: (not message.is_urgent, message.rank))
    language = supported(first.language)
    counts = Counter(message.priority.value if message.priority else "" for message in messages)
    listed = ", ".join(f"{counts[name]} {name}".strip() for name in sorted(counts, key=lambda name: name or "P9"))
    ordered = sorted(messages, key=lambda message: message.rank)
    lines = [localize("line.merged_messages", language, count=len(messages))]
    lines += [_listed(message, language) for message in ordered[:MOST_LISTED]]
    if len(messages) > MOST_LISTED:
        lines.append(localize("line.more_messages", language, count=len(messages) - MOST_LISTED))
    names = hashlib.sha256("\n".join(message.id for message in messages).encode()).hexdigest()[:16]
    title = localize("title.merged_messages", language, count=len(messages), priorities=listed)
    incidents = dict.fromkeys(name for message in messages for name in (message.incident, *message.also) if name)
    return replace(
        first,
        id=f"merged:{names}:{first.channel}",
        incident=None,
        title=title,
        body="\n".join(lines),
        created_at=max(message.created_at for message in messages),
        is_page=any(message.is_page for message in messages),
        labels={},
        also=tuple(incidents),
        facts=_merged_facts(ordered, title),
        buttons=(),
        recipients=tuple(dict.fromkeys(one for message in messages for one in message.recipients)),
        failed_channels=(),
    )


def _merged_facts(messages: Sequence[Message], title: str) -> dict[Fact, str]:
    """The text of an SMS or a call about several messages."""

    def joined(fact: Fact) -> str:
        known = dict.fromkeys(message.facts[fact] for message in messages if fact in message.facts)
        return ", ".join(list(known)[:_MOST_NAMED]) + (", ..." if len(known) > _MOST_NAMED else "")

    starts = [message.facts[Fact.SINCE] for message in messages if Fact.SINCE in message.facts]
    if not starts:
        return {}
    return {
        Fact.WHAT: title,
        Fact.WHERE: joined(Fact.WHERE),
        Fact.SINCE: earliest(starts),
        Fact.IMPACT: joined(Fact.IMPACT),
    }


def _listed(message: Message, language: Language) -> str:
    text = f"{message.title} {message.link}" if message.link else message.title
    return localize("item", language, text=text)
