"""What a vLLM engine counts: plain counters and histograms of every replica, as arrays.

Row i of each array is about replica i. Histograms hold counts per bucket (not cumulated), the last
bucket being +Inf. Bounds are those vLLM 0.32 publishes.
"""

from __future__ import annotations

import numpy as np

from outrider import catalog
from outrider.model import Floats

REQUEST_BOUNDS = catalog.signal("engine_e2e_seconds").bounds
TTFT_BOUNDS = catalog.signal("engine_ttft_seconds").bounds
TOKEN_BOUNDS = catalog.signal("engine_tpot_seconds").bounds
LENGTH_BOUNDS = catalog.signal("engine_prompt_length_tokens").bounds
ITERATION_BOUNDS = (1.0, *(float(2**power) for power in range(3, 15)))
HTTP_FINE_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
    *(2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0),
)

HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "prompt_length": LENGTH_BOUNDS,
    "output_length": LENGTH_BOUNDS,
    "max_output_length": LENGTH_BOUNDS,
    "computed_length": LENGTH_BOUNDS,
    "iteration": ITERATION_BOUNDS,
    "choices": (1.0, 2.0, 5.0, 10.0, 20.0),
    "preempted": (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    "ttft": TTFT_BOUNDS,
    "itl": TOKEN_BOUNDS,
    "tpot": TOKEN_BOUNDS,
    "e2e": REQUEST_BOUNDS,
    "queue": REQUEST_BOUNDS,
    "prefill": REQUEST_BOUNDS,
    "decode": REQUEST_BOUNDS,
    "inference": REQUEST_BOUNDS,
    "http_fine": HTTP_FINE_BOUNDS,
    "http": (0.1, 0.5, 1.0),
}
PLAIN = (
    "prompt_tokens",
    "cached_tokens",
    "generation_tokens",
    "finished_stop",
    "finished_length",
    "preemptions",
    "http_ok",
)


class EngineCounters:
    """Counters of ``replicas`` engines. Nothing here ever falls, but by ``reset``."""

    def __init__(self, replicas: int) -> None:
        self.plain: dict[str, Floats] = {name: np.zeros(replicas) for name in PLAIN}
        self.buckets: dict[str, Floats] = {
            name: np.zeros((replicas, len(bounds) + 1)) for name, bounds in HISTOGRAMS.items()
        }
        self.sums: dict[str, Floats] = {name: np.zeros(replicas) for name in HISTOGRAMS}
        self._replicas = replicas
        self._bounds = {name: np.array(bounds) for name, bounds in HISTOGRAMS.items()}

    def add(self, name: str, replica: np.ndarray, amounts: Floats | float = 1.0) -> None:
        """Raise a plain counter of the given replicas (they may repeat)."""
        weights = np.broadcast_to(np.asarray(amounts, dtype=np.float64), replica.shape)
        self.plain[name] += np.bincount(replica, weights, self._replicas)

    def observe(self, name: str, replica: np.ndarray, values: Floats, weights: Floats | None = None) -> None:
        """Put ``values`` into a histogram of the given replicas; ``weights`` says how often each was seen."""
        if replica.size == 0:
            return
        counts = np.ones(values.shape) if weights is None else weights
        width = self._bounds[name].size + 1
        place = replica * width + np.searchsorted(self._bounds[name], values, side="left")
        flat = np.bincount(place, counts, self._replicas * width)
        self.buckets[name] += flat.reshape(self._replicas, width)
        self.sums[name] += np.bincount(replica, values * counts, self._replicas)

    def reset(self, replica: int) -> None:
        """A new process starts counting at zero."""
        for table in (self.plain, self.sums, self.buckets):
            for values in table.values():
                values[replica] = 0.0

    def scale(self, factor: float) -> None:
        """Multiply everything by a whole number: as if the engines had run that much longer."""
        for table in (self.plain, self.sums, self.buckets):
            for name in table:
                table[name] = table[name] * factor
