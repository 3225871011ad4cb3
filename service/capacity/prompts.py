"""Prompt lengths with their counts, from a file or the store."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime, timedelta
from math import isfinite
from pathlib import Path

import numpy as np

from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef, Floats
from outrider.ports import MetricStore
from outrider.vocabulary import catalog
from service.config import input_files

STEP = timedelta(minutes=10)
PARTS = 16
"""Lengths that a bucket is spread over evenly, because the distribution inside it is unknown."""


def of_file(path: Path, column: str) -> tuple[Floats, Floats]:
    """Reads one length a line, or a column of a CSV file. Raises UsageError with the invalid line."""
    hint = "give a file with one number of tokens per line, or a CSV file and its --column"
    lines = input_files.text_of(path, hint).splitlines()
    plain = not lines or _is_number(lines[0])
    reader = csv.DictReader(io.StringIO("\n".join(lines)), fieldnames=[column] if plain else None)
    if column not in (reader.fieldnames or ()):
        names = ", ".join(reader.fieldnames or ())
        raise UsageError(f"{path} has no column {column!r}", hint=f"name one with --column: {names}")
    tokens = []
    for row in reader:
        text = (row[column] or "").strip()
        if not text:
            continue
        if not _is_number(text) or not 0 <= float(text) <= 1e9:
            raise UsageError(f"{path}:{reader.line_num}: {text!r} is not a number of tokens", hint=hint)
        tokens.append(float(text))
    lengths = np.array(tokens, dtype=np.float64)
    return lengths, np.ones(lengths.size)


def of_store(
    metrics: MetricStore, replicas: Sequence[EntityRef], now: datetime | None, span: timedelta
) -> tuple[Floats, Floats]:
    """Reads the replicas' prompt histogram; each bucket is spread evenly, the last uses its lower bound."""
    signal = catalog.signal("engine_prompt_length_tokens")
    if now is None or not replicas:
        return np.empty(0), np.empty(0)
    keys = signal.bucket_keys[:-1]
    window = metrics.read_windows(EntityKind.REPLICA, keys, now - span, now, STEP, replicas)
    if not window.entities:
        return np.empty(0), np.empty(0)
    counts = np.array([np.nansum(window.column(key)) for key in keys])
    edges = np.array([0.0, *signal.bounds, signal.bounds[-1]])
    inside = (np.arange(PARTS) + 0.5) / PARTS
    lengths = edges[:-1, None] + np.diff(edges)[:, None] * inside
    return lengths.ravel(), np.repeat(counts / PARTS, PARTS)


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False
