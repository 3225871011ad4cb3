"""Keeps a target whose series explode from drowning the rest: only what its adapter reads is kept.

A label with an identifier in it (a request path, a user) turns one metric into a million series. Parsing
them all would cost every target its time and memory; refusing the page would cost the signals beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from collectors.scrape.result import Explosion, Scrape
from outrider.errors import CollectError, CollectReason

_NAME = re.compile(rb"\s*\{?\"?([^{\s\"]+)")
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_LOOKED_AT = 2_000  # lines of the greatest family, to tell which label it is


def within_limit(scrape: Scrape, reads: Callable[[str], bool]) -> Scrape:
    """The scrape as it is, or cut down to the metrics that ``reads`` names when it has more series than its target may.

    When even those are too many the scrape fails with reason TOO_MANY_SERIES.
    """
    body, limit = scrape.body, scrape.target.limit_series
    if body is None or body.count(b"\n") <= limit:
        return scrape
    samples = [line for line in body.split(b"\n") if line and not line.startswith(b"#")]
    if len(samples) <= limit:
        return scrape
    known = {name for name in set(map(_name, samples)) if reads(name.decode(errors="replace"))}
    kept = [line for line in samples if _name(line) in known]
    found, name = explosion(samples), scrape.target.name
    if len(kept) > limit:
        error = CollectError(
            f"{name}: the page has {len(samples)} series, more than the {limit} that are allowed; {found.what}",
            reason=CollectReason.TOO_MANY_SERIES,
            hint="drop the label at the exporter, or raise limit_series of the target",
        )
        return replace(scrape, body=None, error=error)
    found = replace(found, samples=len(samples), limit=limit, kept=len(kept))
    types = [line for line in body.split(b"\n") if line.startswith(b"# TYPE ")]
    end = [b"# EOF"] if body.rstrip().endswith(b"# EOF") else []
    return replace(scrape, body=b"\n".join([*types, *kept, *end, b""]), samples=len(samples), exploded=found)


def explosion(samples: Collection[bytes]) -> Explosion:
    """Which family has most of these lines, and which of its labels takes most values."""
    counts = Counter(map(_name, samples))
    ((family, series),) = counts.most_common(1)
    values: dict[bytes, set[bytes]] = {}
    of_family = (line for line in samples if _name(line) == family)
    for line, _ in zip(of_family, range(_LOOKED_AT), strict=False):
        for label, value in _LABEL.findall(line):
            values.setdefault(label, set()).add(value)
    widest = max(values, key=lambda label: len(values[label]), default=None)
    return Explosion(family.decode(errors="replace"), series, widest.decode() if widest else None)


def _name(line: bytes) -> bytes:
    found = _NAME.match(line)
    return found[1] if found else b""
