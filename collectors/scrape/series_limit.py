"""Series limit per target: beyond it, only the metrics that the adapter reads are kept.

A label with an identifier (a request path, a user) turns one metric into a million series. Parsing all of them
would cost every target time and memory. Rejecting the page would lose its other signals.
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
_INSPECTED_LINES = 2_000  # of the largest family, to find the label


def within_limit(scrape: Scrape, reads: Callable[[str], bool]) -> Scrape:
    """Returns the scrape, cut down to the metrics accepted by ``reads`` if it exceeds the target's series limit.

    If these exceed the limit too, the scrape fails with reason TOO_MANY_SERIES.
    """
    body, limit = scrape.body, scrape.target.limit_series
    if body is None or body.count(b"\n") <= limit:
        return scrape
    samples = [line for line in body.split(b"\n") if line and not line.startswith(b"#")]
    if len(samples) <= limit:
        return scrape
    known = {name for name in set(map(_name, samples)) if reads(name.decode(errors="replace"))}
    lines = [line for line in samples if _name(line) in known]
    cause, name = explosion(samples), scrape.target.name
    if len(lines) > limit:
        error = CollectError(
            f"{name}: the page has {len(samples)} series, the limit is {limit}; {cause.what}",
            reason=CollectReason.TOO_MANY_SERIES,
            hint="drop the label at the exporter, or increase limit_series of the target",
        )
        return replace(scrape, body=None, error=error)
    cause = replace(cause, samples=len(samples), limit=limit, kept=len(lines))
    types = [line for line in body.split(b"\n") if line.startswith(b"# TYPE ")]
    end = [b"# EOF"] if body.rstrip().endswith(b"# EOF") else []
    return replace(scrape, body=b"\n".join([*types, *lines, *end, b""]), samples=len(samples), exploded=cause)


def explosion(samples: Collection[bytes]) -> Explosion:
    """Finds the family with most of these lines, and its label with most values."""
    counts = Counter(map(_name, samples))
    ((family, series),) = counts.most_common(1)
    values: dict[bytes, set[bytes]] = {}
    of_family = (line for line in samples if _name(line) == family)
    for line, _ in zip(of_family, range(_INSPECTED_LINES), strict=False):
        for label, value in _LABEL.findall(line):
            values.setdefault(label, set()).add(value)
    widest = max(values, key=lambda label: len(values[label]), default=None)
    return Explosion(family.decode(errors="replace"), series, widest.decode() if widest else None)


def _name(line: bytes) -> bytes:
    match = _NAME.match(line)
    return match[1] if match else b""
