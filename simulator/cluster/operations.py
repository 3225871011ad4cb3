"""Lasting effects of operations: engines put to sleep, emptied prefix caches, rebooting nodes."""

from __future__ import annotations

import numpy as np

from outrider.model import Floats
from simulator.effects import FleetEffects

REBOOT_SECONDS = 300.0  # firmware, memory training and boot of a GPU server
CACHE_FILL_SECONDS = 60.0  # until the common prefixes of a service are cached again


class Operations:
    """State of operations until they are undone or over. Slots and nodes are indices."""

    def __init__(self, slots: int, nodes: int) -> None:
        self._slept_process = np.full(slots, -1, dtype=np.int64)
        self._emptied_at = np.full(slots, -np.inf)
        self._boots_at = np.full(nodes, np.inf)

    def reset(self) -> None:
        """Undoes everything."""
        self._slept_process[:] = -1
        self._emptied_at[:] = -np.inf
        self._boots_at[:] = np.inf

    def sleep(self, slot: int, process: int) -> None:
        """Puts an engine process to sleep; the next process of the slot is awake."""
        self._slept_process[slot] = process

    def wake(self, slot: int) -> None:
        """Wakes an engine that ``sleep`` put to sleep."""
        self._slept_process[slot] = -1

    def empty_cache(self, slot: int, at: float) -> None:
        """Empties the prefix cache of an engine at ``at`` (unix seconds)."""
        self._emptied_at[slot] = at

    def cold_ratio(self, at: float) -> Floats:
        """Returns the share of usual prefix-cache hits that each slot misses, shape (slots,)."""
        return np.asarray(np.clip(1.0 - (at - self._emptied_at) / CACHE_FILL_SECONDS, 0.0, 1.0))

    def reboot(self, node: int, at: float) -> None:
        """Stops a node; it boots ``REBOOT_SECONDS`` later."""
        self._boots_at[node] = at + REBOOT_SECONDS

    def is_rebooting(self, node: int) -> bool:
        """True from the stop of a node until it has booted."""
        return bool(np.isfinite(self._boots_at[node]))

    def booted(self, at: float) -> list[int]:
        """Returns the nodes whose reboot has ended by ``at``, once."""
        nodes = np.flatnonzero(self._boots_at <= at)
        self._boots_at[nodes] = np.inf
        return [int(node) for node in nodes]

    def apply(self, effects: FleetEffects, process: np.ndarray) -> None:
        """Adds the effects of this tick; ``process`` is the current one of each slot."""
        asleep = self._slept_process == process
        if asleep.any():
            effects.adjust("slots", "asleep")[asleep] = 1.0
        stopped = np.isfinite(self._boots_at)
        if stopped.any():
            effects.adjust("nodes", "alive")[stopped] = 0.0
