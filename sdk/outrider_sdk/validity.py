"""Validity of an answer: detects empty, endlessly repeated and garbled ones, cheaply and without a model.

- *empty*: only white space.
- *garbled*: of the first 4,096 characters at least 3, and at least 5 %, do not occur in text: U+FFFD (undecodable
  bytes), control characters, lone surrogates, private use, unassigned.
- *repeated*: of the last 2,048 characters, the runs of 4 words (8 characters in scripts without spaces, such as
  Chinese) are less than a quarter distinct, with at least 40 of them. Detects a loop of a hundred words, but not a
  table or a list of similar lines.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Optional

Reason = str
EMPTY, REPEATED, GARBLED = "empty", "repeated", "garbled"
REASONS = (EMPTY, REPEATED, GARBLED)
HEAD, TAIL = 4096, 2048
_ODD_SHARE, _ODD_LEAST = 0.05, 3
_DISTINCT_SHARE, _RUNS_LEAST = 0.25, 40
_LONG_WORD = 15
_PERHAPS_ODD = re.compile(r"[^\x20-\x7e\t\n\r\u00a0-\u024f\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef]")
_ODD_KINDS = frozenset(("Cc", "Cs", "Co", "Cn"))
_LAYOUT = frozenset("\t\n\r\x0b\x0c\x1b\x85")  # white space, and the escape of colored output


def check(text: str) -> Optional[Reason]:
    """The reason why an answer is invalid, None if it is valid."""
    if not text or text.isspace():
        return EMPTY
    if _garbled(text[:HEAD]):
        return GARBLED
    return REPEATED if _repeated(text[-TAIL:]) else None


def _garbled(text: str) -> bool:
    # Most texts have no unusual characters: one regular-expression pass confirms it.
    odd = sum(1 for character in _PERHAPS_ODD.findall(text) if _is_odd(character))
    return odd >= _ODD_LEAST and odd >= len(text) * _ODD_SHARE


def _is_odd(character: str) -> bool:
    if character in _LAYOUT:
        return False
    return character == "\ufffd" or unicodedata.category(character) in _ODD_KINDS


def _repeated(text: str) -> bool:
    words = text.split()
    if len(words) * _LONG_WORD >= len(text):
        runs = list(zip(words, words[1:], words[2:], words[3:]))
        distinct, total = len(set(runs)), len(runs)
    else:
        total = len(text) - 7
        distinct = len({text[at : at + 8] for at in range(max(0, total))})
    return total >= _RUNS_LEAST and distinct < total * _DISTINCT_SHARE
