"""Which adapter reads a page that nobody named one for: by the metrics that only one exporter publishes. Pure."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

from collectors.promql import SIGNATURES
from collectors.registry import ADAPTERS, adapter

_NAME = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?=[{ \t])", re.MULTILINE)
_COMMON = re.compile(r"up|target_info|(scrape|process|python|go|http|promhttp|grpc|jvm)_.*")
_LEAST = 2  # names of its own that a page must bear, where it has not the one that marks the exporter


def guess(page: str) -> str | None:
    """The adapter of a page; None when no adapter reads it, or several read it equally well."""
    names = set(_NAME.findall(page))
    for name, mark in SIGNATURES.items():
        if mark in names:
            return name
    counts = Counter(name for metric in names for name in _tells().get(metric, ()))
    (best, most), (_, second) = (*counts.most_common(2), (None, 0), (None, 0))[:2]
    return best if most >= _LEAST and most > second else None


@cache
def _tells() -> dict[str, tuple[str, ...]]:
    """The adapter that alone reads a metric, by its name."""
    readers: dict[str, list[str]] = {}
    for name in ADAPTERS:
        for metric in adapter(name).metric_names:
            if not _COMMON.fullmatch(metric):
                readers.setdefault(metric, []).append(name)
    return {metric: tuple(found) for metric, found in readers.items() if len(found) == 1}
