"""Counters of a vLLM engine: plain counters and histograms of every replica, as arrays.

Row i of each array is replica i. Histograms have counts per bucket (not cumulated); the last bucket is +Inf. Bounds are
those of vLLM 0.32.
"""

from __future__ import annotations

import operator
from itertools import accumulate, repeat

import numpy as np

from outrider.model import Floats
from outrider.vocabulary import catalog
from simulator.engine.buckets import Buckets

REQUEST_BOUNDS = catalog.signal("engine_e2e_seconds").bounds
TTFT_BOUNDS = catalog.signal("engine_ttft_seconds").bounds
TOKEN_BOUNDS = catalog.signal("engine_tpot_seconds").bounds
LENGTH_BOUNDS = catalog.signal("engine_prompt_length_tokens").bounds
ITERATION_BOUNDS = (1.0, *(float(2**power) for power in range(3, 15)))
HTTP_FINE_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
    *(2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0),
)

# Finer than vLLM's, for engines with more buckets: the queue ladder of SGLang 0.5 with the 35 steps of TGI.
STEP_BOUNDS = tuple(accumulate(repeat(1.5, 35), operator.mul, initial=0.0001))[1:]
QUEUE_BOUNDS = (
    *(0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, *(float(second) for second in range(1, 6))),
    *(
        10.0,
        15.0,
        *(float(second) for second in range(20, 100, 10)),
        *(float(second) for second in range(100, 1000, 100)),
    ),
    *(1000.0, 1200.0, 1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0),
)
FINE_BOUNDS = tuple(sorted({*STEP_BOUNDS, *QUEUE_BOUNDS}))

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
    "queue_fine": FINE_BOUNDS,
    "prefill_fine": FINE_BOUNDS,
    "step": STEP_BOUNDS,
}
MOST_UNSETTLED = 256
PLAIN = (
    "prompt_tokens",
    "cached_tokens",
    "generation_tokens",
    "finished_stop",
    "finished_length",
    "finished_abort",
    "finished_error",
    "preemptions",
    "http_ok",
    "http_4xx",
    "http_5xx",
    "kv_transfer_failures",
)


class _Family:
    """Histograms of the same values, which share one search over the bounds of all of them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.bounds = np.array(sorted({bound for name in names for bound in HISTOGRAMS[name]}))
        self.starts = {
            name: np.concatenate([[0], np.searchsorted(self.bounds, HISTOGRAMS[name], side="left") + 1])
            for name in names
        }
        self.buckets = Buckets(self.bounds)
        # Per observation: replicas, values, and weights: none, one array, or one per histogram.
        self.observations: list[tuple[np.ndarray, ...]] = []


class EngineCounters:
    """Counters of ``replicas`` engines. Monotonic, except for ``reset``.

    Observations are collected and summed on read: one pass over many slices is 30 times cheaper than one per slice.
    """

    def __init__(self, replicas: int) -> None:
        self._plain: dict[str, Floats] = {name: np.zeros(replicas) for name in PLAIN}
        self._buckets: dict[str, Floats] = {
            name: np.zeros((replicas, len(bounds) + 1)) for name, bounds in HISTOGRAMS.items()
        }
        self._sums: dict[str, Floats] = {name: np.zeros(replicas) for name in HISTOGRAMS}
        self._replicas = replicas
        self._added: dict[str, list[tuple[np.ndarray, Floats]]] = {}
        self._families: dict[tuple[tuple[str, ...], int], _Family] = {}

    @property
    def plain(self) -> dict[str, Floats]:
        """Plain counters by name, shape (replicas,)."""
        self._settle()
        return self._plain

    @property
    def buckets(self) -> dict[str, Floats]:
        """Histogram counts by name, shape (replicas, buckets)."""
        self._settle()
        return self._buckets

    @property
    def sums(self) -> dict[str, Floats]:
        """Sums of observed values by histogram, shape (replicas,)."""
        self._settle()
        return self._sums

    def add(self, name: str, replica: np.ndarray, amounts: Floats) -> None:
        """Raises a plain counter of the given replicas (they may repeat)."""
        self._added.setdefault(name, []).append((replica, amounts))

    def observe(self, names: str | tuple[str, ...], replica: np.ndarray, values: Floats, *weights: Floats) -> None:
        """Adds ``values`` to one or several histograms of the given replicas (they may repeat).

        ``weights`` are the counts of each value: none (once), one array for all the histograms, or one array for each.
        """
        if replica.size == 0:
            return
        several = (names,) if isinstance(names, str) else names
        family = self._families.get((several, len(weights)))
        if family is None:
            family = self._families[several, len(weights)] = _Family(several)
        family.observations.append((replica, values, *weights))
        if len(family.observations) >= MOST_UNSETTLED:
            self._settle()

    def reset(self, replica: int) -> None:
        """Resets the counters of a replica, as in a new process."""
        for table in (self.plain, self.sums, self.buckets):
            for values in table.values():
                values[replica] = 0.0

    def scale(self, factor: float) -> None:
        """Multiplies everything by a whole number, as if the engines had run longer by that factor."""
        for table in (self.plain, self.sums, self.buckets):
            for name in table:
                table[name] = table[name] * factor

    def _settle(self) -> None:
        added, self._added = self._added, {}
        for name, parts in added.items():
            replica, amounts = (np.concatenate(column) for column in zip(*parts, strict=True))
            self._plain[name] += np.bincount(replica, amounts, self._replicas)
        for family in self._families.values():
            observations, family.observations = family.observations, []
            if observations:
                self._count(family, *(np.concatenate(column) for column in zip(*observations, strict=True)))

    def _count(self, family: _Family, replica: np.ndarray, values: Floats, *weights: Floats) -> None:
        width = family.bounds.size + 1
        place = replica * width + family.buckets.of(values)
        for number, counts in enumerate(weights or (None,)):
            flat = np.bincount(place, counts, self._replicas * width).reshape(self._replicas, width)
            total = np.bincount(replica, values if counts is None else values * counts, self._replicas)
            for name in family.names if len(weights) < 2 else (family.names[number],):
                self._buckets[name] += np.add.reduceat(flat, family.starts[name], axis=1)
                self._sums[name] += total
