"""The metrics page of a vLLM server: release 0.32, or 0.8 with other and fewer metric names."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from outrider.model import Floats
from simulator.engine.counters import LENGTH_BOUNDS
from simulator.exporters.engines import Columns, EnginePages, View, process_columns
from simulator.exporters.numbers import python_number
from simulator.exporters.outlines import Labels, Style
from simulator.spec.fleets import ServiceSpec

OPEN_FILES_IDLE = 32.0
SLEEP_SECONDS, WAKE_SECONDS = 4.0, 2.0  # about ten GB of weights over PCIe to the host and back
_SLEEP_BOUNDS = (0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_LENGTHS = ("prompt_length", "output_length", "max_output_length", "computed_length")


class VllmPages(EnginePages):
    """Writes the page of any vLLM replica.

    Requests aborted by clients do not count as finished. A sleeping engine is visible only in
    ``vllm:engine_sleep_state``; the families of the sleep mode stay until it restarts.
    """

    style: ClassVar[Style] = Style(python_number, sort_labels=True, created=True)

    def __init__(self) -> None:
        super().__init__()
        self._slept: dict[str, Floats] = {}

    def release(self, changed: bool) -> str:
        """Returns the file of release 0.32 or 0.8."""
        return "vllm_0_8" if changed else "vllm_0_32"

    def sets(self, service: ServiceSpec) -> dict[str, Labels]:
        """Returns label sets: base, model only, empty, and the KV-cache configuration."""
        engine = service.engine
        kv_tokens = engine.kv_blocks * engine.block_size
        return {
            "base": {"engine": "0", "model_name": engine.model},
            "model": {"model_name": engine.model},
            "none": {},
            "config": {
                "engine": "0",
                "block_size": str(engine.block_size),
                "effective_attention_block_size": str(engine.block_size),
                "gpu_memory_utilization": f"{engine.memory_reserved_ratio:g}",
                "kv_cache_max_concurrency": f"{kv_tokens / engine.max_model_length:.2f}",
                "kv_cache_size_tokens": str(kv_tokens),
                "num_gpu_blocks": str(engine.kv_blocks),
            },
            "old_config": {
                "block_size": str(engine.block_size),
                "gpu_memory_utilization": f"{engine.memory_reserved_ratio:g}",
                "num_gpu_blocks": str(engine.kv_blocks),
            },
        }

    def ladders(self, service: ServiceSpec) -> dict[str, tuple[float, ...]]:
        """Returns the 1-2-5 ladder of lengths, up to the maximum context."""
        lengths = tuple(bound for bound in LENGTH_BOUNDS if bound <= service.engine.max_model_length)
        return dict.fromkeys(_LENGTHS, lengths)

    def scalars(self, view: View) -> Columns:
        """Returns gauges and plain counters."""
        asleep, slept = view.asleep.astype(np.float64), self._ever_slept(view)
        prompt, cached = view.plain("prompt_tokens"), view.plain("cached_tokens")
        refused = view.plain("http_4xx") + view.plain("http_5xx")
        return {
            **process_columns(view, OPEN_FILES_IDLE),
            "running": view.gauge("running"),
            "waiting": view.gauge("waiting"),
            "kv_used_ratio": np.round(view.gauge("kv_used_ratio"), 12),
            "asleep": asleep,
            "awake": 1.0 - asleep,
            "slept": slept,
            "woken": slept * (1.0 - asleep),
            "slept_seconds": _operation(slept, SLEEP_SECONDS),
            "woken_seconds": _operation(slept * (1.0 - asleep), WAKE_SECONDS),
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "computed_tokens": prompt - cached,
            "queried_blocks": np.floor(prompt / view.service.engine.block_size),
            "cached_blocks": np.floor(cached / view.service.engine.block_size),
            "generation_tokens": view.plain("generation_tokens"),
            "preemptions": view.plain("preemptions"),
            "finished_stop": view.plain("finished_stop"),
            "finished_length": view.plain("finished_length"),
            "finished_abort": view.plain("finished_abort"),
            "finished_error": view.plain("finished_error"),
            "kv_transfer_failures": view.plain("kv_transfer_failures"),
            "http_refused": refused,
            "http_all": view.plain("http_ok") + refused,
            "http_received": view.total("prompt_length") * 4.0,
        }

    def _ever_slept(self, view: View) -> Floats:
        """Returns 1 for engines that have slept since their start, else 0."""
        ready = view.ready_at
        since = self._slept.get(view.service.name, np.full(ready.shape, -1.0))
        self._slept[view.service.name] = np.where(view.asleep, ready, since)
        return np.where(self._slept[view.service.name] == ready, 1.0, 0.0)


def _operation(done: Floats, seconds: float) -> Floats:
    """Returns the histogram of an operation done at most once: buckets with +Inf, count, sum."""
    inside = [float(bound >= seconds) for bound in (*_SLEEP_BOUNDS, np.inf)]
    return np.asarray(done[:, None] * np.array([*inside, 1.0, seconds]), dtype=np.float64)
