"""Writes parsed pages as text, for the flight recorder: pages from a Prometheus and pushed pages. Pure."""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

import numpy as np

from collectors.exposition.parser import Layout, Page, Series

_PLAIN = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
_heads: WeakKeyDictionary[Layout, list[str]] = WeakKeyDictionary()


def text(page: Page) -> bytes:
    """The page in the Prometheus text format; parsed again, it has the same series, values and timestamps (ms)."""
    heads = _heads.get(page.layout)
    if heads is None:
        heads = _heads[page.layout] = [_head(series) for series in page.series]
    values = [_SPECIAL.get(value, value) for value in map(repr, page.values.tolist())]
    types = [f"# TYPE {_quoted(family)} {kind}" for family, kind in page.types.items()]
    if np.isfinite(page.timestamps).any():
        stamps = [f" {stamp * 1000:.0f}" if np.isfinite(stamp) else "" for stamp in page.timestamps.tolist()]
        lines = [f"{head} {value}{stamp}" for head, value, stamp in zip(heads, values, stamps, strict=True)]
    else:
        lines = [f"{head} {value}" for head, value in zip(heads, values, strict=True)]
    return "\n".join([*types, *lines, ""]).encode()


def _head(series: Series) -> str:
    labels = [f'{_quoted(name)}="{value.translate(_ESCAPES)}"' for name, value in series.labels.items()]
    if not _PLAIN.fullmatch(series.name):
        return f"{{{','.join([_quoted(series.name), *labels])}}}"
    return f"{series.name}{{{','.join(labels)}}}" if labels else series.name


def _quoted(name: str) -> str:
    """A name, quoted if it has more than the classic characters."""
    return name if _PLAIN.fullmatch(name) else f'"{name.translate(_ESCAPES)}"'
