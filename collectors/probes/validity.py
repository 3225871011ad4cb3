"""Is a generated text a text? Empty, endlessly repeated and garbled answers are told from good ones. Pure.

These are coarse on purpose: a probe asks a question whose good answers are short plain sentences, and a
model that is merely wrong is no fault of its server.
"""

from __future__ import annotations

import unicodedata
from collections import Counter

from collectors.probes.result import Outcome

PROMPT = "Name the months of the year."  # such a question
_LEAST_REPEATED = 16  # characters: shorter texts repeat themselves by accident
_TIMES = 4
_MOST = 4_000  # characters looked at: a server that floods us must not cost us more than that
_WORDS, _ONE_WORD_SHARE = 12, 0.8
_ODD_SHARE = 0.05
_SCRIPTS = 4  # writing systems in one short answer: what broken weights or a broken KV cache come out as
_ODD_CATEGORIES = frozenset({"Cc", "Cn", "Co", "Cs"})
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
    """One unit again and again from some place in the first half to the end, or one word most of the time."""
    if len(text) < _LEAST_REPEATED:
        return False
    tail = text[len(text) // 2 :] if len(text) >= 4 * _LEAST_REPEATED else text
    for period in range(1, len(tail) // _TIMES + 1):
        if tail[period:] == tail[:-period]:
            return True
    words = text.split()
    return len(words) >= _WORDS and Counter(words).most_common(1)[0][1] >= _ONE_WORD_SHARE * len(words)


def _garbled(text: str) -> bool:
    odd = sum(one == "\ufffd" or (one not in _PLAIN and unicodedata.category(one) in _ODD_CATEGORIES) for one in text)
    if odd > _ODD_SHARE * len(text):
        return True
    scripts = {unicodedata.name(one, "?").split(" ", 1)[0] for one in text if one.isalpha()}
    return len(scripts - {"CJK", "HIRAGANA", "KATAKANA"}) + bool(scripts & {"CJK", "HIRAGANA", "KATAKANA"}) >= _SCRIPTS
