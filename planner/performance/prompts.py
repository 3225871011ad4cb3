"""What engines tell of their prompts and of their KV cache, for the queueing model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.model import SignalKey, Window
from outrider.vocabulary import catalog

PROMPTS, FINISHED = "engine_prompt_tokens_total", "engine_requests_finished_total"
HITS, KV_TOKENS = "engine_prefix_cache_hit_ratio", "engine_kv_cache_capacity_tokens"
LENGTHS = catalog.signal("engine_prompt_length_tokens")
LENGTH_BUCKETS, LENGTH_SUM = LENGTHS.bucket_keys[:-1], LENGTHS.bucket_keys[-1]
KEYS = (*(SignalKey(name) for name in (PROMPTS, FINISHED, HITS, KV_TOKENS)), *LENGTHS.bucket_keys)
"""What the window of replicas should carry; any of it may be missing."""

_LEAST_REQUESTS = 20.0


@dataclass(frozen=True, slots=True)
class Prompts:
    """Mean ``tokens`` of a prompt, None with fewer than 20 requests; the share of them that the prefix cache held.

    ``kv_tokens`` is the median KV cache of a replica, None where no page tells it.
    """

    tokens: float | None
    cached_ratio: float
    kv_tokens: float | None


def seen(window: Window) -> Prompts:
    """What the replicas of a window showed, over all of it."""
    capacity = _known(window, KV_TOKENS)
    capacity = capacity[capacity > 0]
    hits = _known(window, HITS)
    return Prompts(
        _tokens(window),
        float(np.clip(hits.mean(), 0.0, 1.0)) if hits.size else 0.0,
        float(np.median(capacity)) if capacity.size else None,
    )


def _tokens(window: Window) -> float | None:
    """By the histogram of lengths, which counts whole prompts; by the two counters where there is none."""
    counts = np.stack([window.column(key) for key in LENGTH_BUCKETS])
    lengths = window.column(LENGTH_SUM)
    told = ~np.isnan(counts).all(axis=0) & ~np.isnan(lengths)
    requests = float(np.nansum(counts[:, told]))
    tokens = float(lengths[told].sum())
    if requests < _LEAST_REQUESTS:
        prompts, finished = window.column(PROMPTS), window.column(FINISHED)
        both = ~np.isnan(prompts) & ~np.isnan(finished)
        requests, tokens = float(finished[both].sum()), float(prompts[both].sum())
    return tokens / requests if requests >= _LEAST_REQUESTS and tokens > 0 else None


def _known(window: Window, name: str) -> np.ndarray:
    values = window.column(name)
    return np.asarray(values[np.isfinite(values)])
