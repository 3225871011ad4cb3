"""Validity of generated text: distinguishes empty, endlessly repeated and garbled output from good output. Pure.

The checks are coarse on purpose. A probe's prompt has short plain answers, and a model that is merely wrong is not
a fault of its server.
"""

from __future__ import annotations

import unicodedata
from collections import Counter

from collectors.probes.result import Outcome

PROMPT = "Name the months of the year."  # a suitable prompt
_LEAST_REPEATED = 16  # characters: shorter texts repeat by chance
_TIMES = 4
_MOST = 4_000  # characters inspected: bounds the cost of a flooding server
_WORDS, _ONE_WORD_SHARE = 12, 0.8
_SUSPICIOUS_SHARE = 0.05
_SCRIPTS = 4  # writing systems in one short output: typical of broken weights or a broken KV cache
_SUSPICIOUS_CATEGORIES = frozenset({"Cc", "Cn", "Co", "Cs"})
_PLAIN = frozenset("\n\r\t")


def validity_of(text: str) -> Outcome:
    """OK, EMPTY, REPEATED or GARBLED."""
    stripped = text.strip()
    if not stripped:
        return Outcome.EMPTY
    if _repeated(stripped[-_MOST:]):
        return Outcome.REPEATED
    return Outcome.GARBLED if _garbled(stripped[:_MOST]) else Outcome.OK


def _repeated(text: str) -> bool:
    """True if one unit repeats from the first half to the end, or one word dominates."""
    if len(text) < _LEAST_REPEATED:
        return False
    tail = text[len(text) // 2 :] if len(text) >= 4 * _LEAST_REPEATED else text
    for period in range(1, len(tail) // _TIMES + 1):
        if tail[period:] == tail[:-period]:
            return True
    words = text.split()
    return len(words) >= _WORDS and Counter(words).most_common(1)[0][1] >= _ONE_WORD_SHARE * len(words)


def _garbled(text: str) -> bool:
    suspicious = sum(
        character == "\ufffd" or (character not in _PLAIN and unicodedata.category(character) in _SUSPICIOUS_CATEGORIES)
        for character in text
    )
    if suspicious > _SUSPICIOUS_SHARE * len(text):
        return True
    scripts = {unicodedata.name(character, "?").split(" ", 1)[0] for character in text if character.isalpha()}
    return len(scripts - {"CJK", "HIRAGANA", "KATAKANA"}) + bool(scripts & {"CJK", "HIRAGANA", "KATAKANA"}) >= _SCRIPTS
