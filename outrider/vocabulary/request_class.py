"""Request classes of a service or replica: tier, interactive or batch, prompt length.

Three short vocabularies: any label text maps to one of a few dozen classes.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum


class Tier(StrEnum):
    """Priority of the requests."""

    VIP = "vip"
    STANDARD = "standard"


class Mode(StrEnum):
    """Interactive or batch."""

    ONLINE = "online"
    OFFLINE = "offline"


class PromptLength(StrEnum):
    """Prompt tokens, by bounds of the catalog's buckets ``length``."""

    SHORT = "short"  # up to 1,000
    MEDIUM = "medium"  # up to 10,000
    LONG = "long"  # up to 50,000
    HUGE = "huge"


LENGTH_BOUNDS = (1_000, 10_000, 50_000)
_WORDS: dict[str, Tier | Mode | PromptLength] = {
    **dict.fromkeys(("vip", "gold", "premium", "platinum", "paid"), Tier.VIP),
    **dict.fromkeys(("standard", "normal", "default", "free", "basic"), Tier.STANDARD),
    **dict.fromkeys(("online", "realtime", "interactive", "sync", "chat"), Mode.ONLINE),
    **dict.fromkeys(("offline", "batch", "async", "bulk", "background"), Mode.OFFLINE),
    **{one.value: one for one in PromptLength},
}
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class RequestClass:
    """One class; None for unknown parts."""

    tier: Tier | None = None
    mode: Mode | None = None
    length: PromptLength | None = None

    def __str__(self) -> str:
        """``vip-online-long``, without unknown parts; empty if all are unknown."""
        return "-".join(part.value for part in (self.tier, self.mode, self.length) if part is not None)

    @staticmethod
    def parse(text: str) -> RequestClass:
        """Parses words such as ``VIP, online`` or ``batch/long``; the first per part counts, others are ignored."""
        tier = mode = length = None
        for word in _WORD.findall(text.lower()):
            known = _WORDS.get(word)
            if isinstance(known, Tier):
                tier = tier or known
            elif isinstance(known, Mode):
                mode = mode or known
            elif isinstance(known, PromptLength):
                length = length or known
        return RequestClass(tier, mode, length)


def prompt_length(tokens: float) -> PromptLength:
    """The class of a prompt with so many tokens."""
    return tuple(PromptLength)[bisect_left(LENGTH_BOUNDS, tokens)]
