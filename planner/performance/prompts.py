"""Prompt lengths and KV cache reported by engines, for the queueing model."""

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
"""Signals of the window of replicas; any of them may be missing."""

_LEAST_REQUESTS = 20.0


@dataclass(frozen=True, slots=True)
class Prompts:
    """Mean ``tokens`` of a prompt, None with fewer than 20 requests, and the share of them in the prefix cache.

    ``kv_tokens`` is the median KV cache of a replica, None if no metrics page has it.
    """

    tokens: float | None
    cached_ratio: float
    kv_tokens: float | None


def measure_prompts(window: Window) -> Prompts:
    """Measures the prompts of the replicas of a window, over all of it."""
    capacity = _known(window, KV_TOKENS)
    capacity = capacity[capacity > 0]
    hits = _known(window, HITS)
    return Prompts(
        _tokens(window),
        float(np.clip(hits.mean(), 0.0, 1.0)) if hits.size else 0.0,
        float(np.median(capacity)) if capacity.size else None,
    )


def _tokens(window: Window) -> float | None:
    """Mean from the length histogram, which counts complete prompts; otherwise from the two counters."""
    counts = np.stack([window.column(key) for key in LENGTH_BUCKETS])
    lengths = window.column(LENGTH_SUM)
    reported = ~np.isnan(counts).all(axis=0) & ~np.isnan(lengths)
    requests = float(np.nansum(counts[:, reported]))
    tokens = float(lengths[reported].sum())
    if requests < _LEAST_REQUESTS:
        prompts, finished = window.column(PROMPTS), window.column(FINISHED)
        both = ~np.isnan(prompts) & ~np.isnan(finished)
        requests, tokens = float(finished[both].sum()), float(prompts[both].sum())
    return tokens / requests if requests >= _LEAST_REQUESTS and tokens > 0 else None


def _known(window: Window, name: str) -> np.ndarray:
    values = window.column(name)
    return np.asarray(values[np.isfinite(values)])
