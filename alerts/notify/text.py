"""Texts of messages: truncation to limits, neutral markup, buttons, and the short text of SMS and calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from outrider.model import Button, ButtonAction, Fact, Message, NotifyReason
from outrider.text.i18n import Language, supported, translate

Built = TypeVar("Built")
_MOST_INPUT = 200_000  # characters of a text that are read at all: a label of 1 MB must not delay a page
_MOST_LINE = 4000
_MOST_FITTED = 28_672  # characters: no channel accepts a request of more bytes
# Dialects of Markdown without a documented escape: the full-width form of a character is readable and inert.
_INERT = str.maketrans("<>*`@", "＜＞＊｀＠")
_LINK_END = re.compile(r"\](?=[(\[:])")  # only then do brackets make a link
_LINE_STARTS = {"#": "＃", "=": "＝", "+": "＋"}


def shorten(text: str, limit: int, mark: str) -> str:
    """At most ``limit`` characters, including the truncation mark."""
    if len(text) <= limit:
        return text
    return text[: max(0, limit - len(mark))] + mark[:limit]


def shorten_bytes(text: str, limit: int, mark: str) -> str:
    """At most ``limit`` bytes of UTF-8, without partial characters."""
    if len(text.encode(errors="replace")) <= limit:
        return text
    kept = text.encode(errors="replace")[: max(0, limit - len(mark.encode()))].decode(errors="ignore")
    return kept + mark


def fit_body(message: Message, build: Callable[[str], Built], fits: Callable[[Built], bool]) -> Built:
    """What ``build`` makes of the longest beginning of the body with which it ``fits``, ended by a truncation mark.

    For limits on an encoded request, in which quotes, line breaks and escaped characters are longer.
    """
    text, mark = clean(message.body), mark_of(message)
    if len(text) <= _MOST_FITTED and fits(built := build(text)):
        return built
    low, high = 0, min(len(text), _MOST_FITTED)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(build(text[:middle] + mark)) else (low, middle - 1)
    return build(text[:low] + mark)


def mark_of(message: Message) -> str:
    """The truncation mark."""
    return translate("notify.truncated", supported(message.language))


def one_line(text: str) -> str:
    """The text without line breaks and control characters, for titles and mail headers."""
    printable = "".join(char if char.isprintable() else " " for char in text[:_MOST_LINE])
    return " ".join(printable.split())


def clean(text: str) -> str:
    """The text without control characters and lone surrogates, with its line breaks."""
    lines = text[:_MOST_INPUT].splitlines()
    return "\n".join("".join(char if char.isprintable() else " " for char in line) for line in lines)


def inert(text: str) -> str:
    """The text without markup, mentions or links of a Markdown dialect that has no escape. Line breaks stay."""
    lines = (_LINK_END.sub("］", line.translate(_INERT)) for line in clean(text).splitlines())
    return "\n".join(_LINE_STARTS.get(line[:1], line[:1]) + line[1:] for line in lines)


def markdown_link(text: str, url: str) -> str:
    """A Markdown link. Parentheses would end the address, so they are encoded."""
    return f"[{inert(text)}]({url.replace('(', '%28').replace(')', '%29')})"


def to_json(value: Any) -> bytes:
    """The value as JSON in UTF-8. A lone surrogate, which has no UTF-8, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def buttons_of(message: Message) -> list[tuple[str, str]]:
    """Texts and URLs of the buttons. The page of the incident is the last one, unless the message has its own."""
    language = supported(message.language)
    buttons = list(message.buttons)
    if message.link and all(button.action is not ButtonAction.OPEN for button in buttons):
        buttons.append(Button(ButtonAction.OPEN, message.link))
    return [(button_text(button.action, language), button.url) for button in buttons if is_link(button.url)]


def button_text(action: ButtonAction, language: Language) -> str:
    """The text of a button."""
    return translate(f"notify.button.{action}", language)


def is_link(url: str) -> bool:
    """True for an address that a receiver may open."""
    return url.startswith(("https://", "http://")) and url.isprintable() and not any(char in url for char in ' "<>')


def short_text(message: Message, limit: int) -> str:
    """One sentence for SMS and calls, at most ``limit`` characters: priority, fault, place, services, start.

    The text of a message without these facts is its title.
    """
    language = supported(message.language)
    known = {fact: one_line(text) for fact, text in message.facts.items()}
    if Fact.WHAT not in known or message.reason in (NotifyReason.REPORT, NotifyReason.SHIFT_SUMMARY, NotifyReason.TEST):
        return shorten(one_line(message.title), limit, "…")
    resolved = message.reason is NotifyReason.RESOLVED
    text = translate(
        "notify.short.resolved" if resolved else "notify.short.open",
        language,
        priority=message.priority or "",
        what=known[Fact.WHAT],
        where=known.get(Fact.WHERE, ""),
        impact=known.get(Fact.IMPACT, ""),
        since=known.get(Fact.SINCE, ""),
    )
    return shorten(text, limit, "…")
