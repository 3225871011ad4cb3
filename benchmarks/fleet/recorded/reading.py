"""Recordings of one vLLM server under load: client latencies and exposition pages.

A load is one or several ``<name>.requests.csv`` (one row per request) and ``<name>.metrics.jsonl.gz`` (one line per
scrape: ``t`` in unix seconds, ``text`` is the page).
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from outrider.errors import UsageError
from outrider.model import Floats

GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv": "vllm:kv_cache_usage_perc",
}
_COUNTERS = {"preemptions": "vllm:num_preemptions_total", "itl_sum": "vllm:inter_token_latency_seconds_sum"}
_COUNTERS |= {"itl_count": "vllm:inter_token_latency_seconds_count"}
_SAMPLE = re.compile(r"^(?P<name>[a-z_:]+)(?:\{[^}]*\})? (?P<value>\S+)$", re.MULTILINE)
_CACHE = re.compile(r"^vllm:cache_config_info\{(?P<labels>[^}]*)\}", re.MULTILINE)
REACHED_SCHEDULER = 200
SHOWN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Recording:
    """Requests in order of arrival, shape (requests,), and scrapes, shape (scrapes,); times in unix seconds.

    ``cached`` are prompt tokens found in the prefix cache; ``prefix`` numbers the shared prefixes (-1:
    none), each ``common`` tokens long. ``series`` holds the gauges and counters of ``GAUGES`` and more.
    """

    name: str
    at: Floats
    prompt: Floats
    output: Floats
    cached: Floats
    prefix: np.ndarray
    common: Floats
    ttft: Floats
    e2e: Floats
    scraped_at: Floats
    series: Mapping[str, Floats]
    block_size: int
    blocks: int

    def shown(self, at: Floats) -> np.ndarray:
        """Returns True for times in the minutes that a fit uses: every other minute from the first arrival on."""
        return np.asarray((at - self.at[0]) // SHOWN_SECONDS % 2 == 0)


def read(folder: Path, name: str, parts: tuple[str, ...] = (), prefixes: Mapping[str, int] | None = None) -> Recording:
    """Reads the load ``name``; ``parts`` are the names of its request files if there are several.

    ``prefixes`` are the tokens shared by requests of a kind at the same endpoint; the chat endpoint adds its template.
    The first request computes these tokens; later ones find them in the cache, in whole blocks. Raises UsageError for
    a missing or invalid file.
    """
    rows = sorted(_rows(folder, parts or (name,)), key=lambda row: float(row["start"]))
    if not rows:
        raise UsageError(f"recording {name}: no request reached the scheduler", hint="check the column `status`")
    scraped_at, series, labels = _page(folder / f"{name}.metrics.jsonl.gz")
    block = int(labels["block_size"])
    kinds = [(row["kind"], row["endpoint"]) for row in rows]
    numbers = {kind: number for number, kind in enumerate(sorted(set(kinds))) if kind[0] in (prefixes or {})}
    common = np.array([(prefixes or {}).get(kind, 0) // block * block for kind, _ in kinds], dtype=np.float64)
    known = np.array([kind in kinds[:place] for place, kind in enumerate(kinds)])
    return Recording(
        name=name,
        at=_column(rows, "start"),
        prompt=_column(rows, "prompt_tokens"),
        output=_column(rows, "output_tokens"),
        cached=np.where(known, common, 0.0),
        prefix=np.array([numbers.get(kind, -1) for kind in kinds]),
        common=common,
        ttft=_column(rows, "ttft_s"),
        e2e=_column(rows, "e2e_s"),
        scraped_at=scraped_at,
        series=series,
        block_size=block,
        # vLLM reserves one block; its usage gauge is a share of the others.
        blocks=int(labels["num_gpu_blocks"]) - 1,
    )


def _rows(folder: Path, names: tuple[str, ...]) -> Iterator[dict[str, str]]:
    for name in names:
        path = folder / f"{name}.requests.csv"
        packed = path.with_suffix(".csv.gz")
        try:
            text = gzip.decompress(packed.read_bytes()).decode() if packed.exists() else path.read_text("utf-8")
        except OSError as error:
            raise UsageError(f"{path}: cannot be read", hint=str(error)) from error
        for row in csv.DictReader(text.splitlines()):
            if int(row["status"]) == REACHED_SCHEDULER:
                yield row


def _column(rows: list[dict[str, str]], name: str) -> Floats:
    return np.array([float(row[name]) for row in rows])


def _page(path: Path) -> tuple[Floats, dict[str, Floats], dict[str, str]]:
    """Returns timestamps, series by name, and the labels that describe the KV cache."""
    wanted = {metric: name for name, metric in {**GAUGES, **_COUNTERS}.items()}
    at: list[float] = []
    result: dict[str, list[float]] = {name: [] for name in wanted.values()}
    labels: dict[str, str] = {}
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            scrapes = [scrape for line in lines if (scrape := json.loads(line)).get("text")]
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as a recording", hint=str(error)) from error
    for scrape in scrapes:
        values = {match["name"]: float(match["value"]) for match in _SAMPLE.finditer(scrape["text"])}
        at.append(float(scrape["t"]))
        for metric, name in wanted.items():
            result[name].append(values.get(metric, np.nan))
        cache = _CACHE.search(scrape["text"])
        if cache is not None:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', cache["labels"]))
    if "num_gpu_blocks" not in labels or any(later <= earlier for earlier, later in pairwise(at)):
        raise UsageError(
            f"{path}: no page with KV-cache settings, or times out of order", hint="record vLLM 0.9 or later"
        )
    return np.array(at), {name: np.array(values) for name, values in result.items()}, labels
