"""The metrics page of an SGLang server, release 0.5.23, or 0.4.4 with older names."""

from __future__ import annotations

from itertools import accumulate, repeat
from operator import mul
from typing import ClassVar

import numpy as np

from simulator.exporters.engines import Columns, EnginePages, View, process_columns, shared
from simulator.exporters.numbers import python_number
from simulator.exporters.outlines import Labels, Style
from simulator.spec.fleets import ServiceSpec

OPEN_FILES_IDLE = 41.0
_STAGE_BOUNDS = tuple(accumulate(repeat(1.62, 29), mul, initial=0.001))
_EMPTY_IMBALANCE, _EMPTY_WAIT = np.zeros(14 + 3), np.zeros(13 + 3)


class SglangPages(EnginePages):
    """Writes the page of any SGLang replica.

    ``is_streaming`` splits counters and latencies by clients with and without streaming. Rates and
    the hit ratio are gauges of the last interval. Aborted requests are counted, unlike vLLM's.
    """

    style: ClassVar[Style] = Style(python_number, sort_labels=True, created=True)

    def release(self, changed: bool) -> str:
        """Returns the file of release 0.5.23 or 0.4.4."""
        return "sglang_0_4" if changed else "sglang_0_5"

    def sets(self, service: ServiceSpec) -> dict[str, Labels]:
        """Returns the labels of the scheduler, the tokenizer, the HTTP layer, and an empty set."""
        tokenizer = {"engine_type": "unified", "model_name": service.engine.model}
        return {
            "base": {**tokenizer, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"},
            "tokenizer": tokenizer,
            "model": {"model_name": service.engine.model},
            "http": {"endpoint": "/v1/chat/completions", "method": "POST"},
            "none": {},
        }

    def ladders(self, service: ServiceSpec) -> dict[str, tuple[float, ...]]:
        """Returns the ladder of request stages: 30 geometric steps from 1 ms."""
        del service
        return {"stage": _STAGE_BOUNDS}

    def scalars(self, view: View) -> Columns:
        """Returns gauges and plain counters."""
        engine = view.service.engine
        prompt, cached = view.plain("prompt_tokens"), view.plain("cached_tokens")
        generated = view.plain("generation_tokens")
        capacity = float(engine.kv_blocks * engine.block_size)
        used = np.round(view.gauge("kv_used_ratio") * capacity)
        # Computed tokens stay in the radix cache until their memory is needed.
        evictable = np.minimum(capacity - used, prompt - cached + generated)
        rows = view.slots.size
        startup = view.startup_seconds
        split = {
            f"{name}_{share}": shared(count, share)
            for name, count in (("prompt", prompt), ("generation", generated), ("finished", view.finished))
            for share in ("streamed", "whole")
        }
        return {
            **process_columns(view, OPEN_FILES_IDLE),
            **split,
            "not_known": np.nan,
            "running": view.gauge("running"),
            "waiting": view.gauge("waiting"),
            "generation_rate": np.round(view.per_second("generation", generated), 6),
            "cache_hit_ratio": np.round(view.share("cache", cached, prompt), 6),
            "kv_used_ratio": np.round(used / capacity, 4),
            "used_tokens": used,
            "available_tokens": capacity - used - evictable,
            "evictable_tokens": evictable,
            "capacity_tokens": capacity,
            "page_size": float(engine.block_size),
            "pages": float(engine.kv_blocks),
            "context_tokens": float(engine.max_model_length),
            "computed_tokens": prompt - cached,
            "cached_tokens": cached,
            "prompt_tokens": prompt,
            "finished": view.finished,
            "generation_tokens": generated,
            "preemptions": view.plain("preemptions"),
            "kv_transfer_failures": view.plain("kv_transfer_failures"),
            "aborted": view.left,
            "startup_seconds": np.round(startup, 3),
            "load_seconds": np.round(startup * _load_share(view), 3),
            "http_received": view.received,
            "in_flight": view.in_flight,
            "imbalance": np.tile(_EMPTY_IMBALANCE, (rows, 1)),
            "sync_wait": np.tile(_EMPTY_WAIT, (rows, 1)),
        }


def _load_share(view: View) -> float:
    """Returns the share of the start-up that loads weights."""
    startup = view.fleet.spec.startup
    return startup.load_seconds / (startup.load_seconds + startup.warm_seconds)
