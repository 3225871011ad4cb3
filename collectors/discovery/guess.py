"""Which adapter reads a page that nobody named one for, by the names of its metrics. Pure."""

from __future__ import annotations

import re
from collections import Counter

from collectors.signatures import SIGNATURES, speaks_for

_NAME = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?=[{ \t])", re.MULTILINE)
_LEAST = 2  # names of its own that a page must bear, where it has not the one that marks the exporter


def guess(page: str) -> str | None:
    """The adapter of a page; None when no adapter reads it, or several read it equally well."""
    names = set(_NAME.findall(page))
    for name, mark in SIGNATURES.items():
        if mark in names:
            return name
    counts = Counter(one for metric in names if (one := speaks_for(metric)) is not None)
    (best, most), (_, second) = (*counts.most_common(2), (None, 0), (None, 0))[:2]
    return best if most >= _LEAST and most > second else None
