"""The fast path: hard faults go through decide and commit as soon as a scrape or reading shows them.

One decision is in progress at a time. What arrives meanwhile is decided together in the next one. A failure costs
only time: the cycle takes the same values.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from detectors.hardware.hard_fault_signs import HardFaultSign, signs_of
from outrider import log
from outrider.clock import Clock
from outrider.errors import OutriderError
from outrider.ports import Collected

_log = log.get("fast_path")
MOST_WAITING = 10_000  # scrapes and readings; beyond it, the cycle decides


class EarlyDecider(Protocol):
    """The part of the cycle that the fast path uses."""

    def is_known(self, sign: HardFaultSign) -> bool:
        """True if an alert about the sign is active."""
        ...

    def decide_early(self, collected: Sequence[Collected], signs: frozenset[HardFaultSign]) -> bool:
        """Decides about the signs. Raises StoreError."""
        ...


class FastPath:
    """Takes single scrapes and readings from any thread, and decides about those with a sign of a hard fault."""

    def __init__(self, cycle: EarlyDecider, clock: Clock) -> None:
        """Starts its thread with the first sign."""
        self._cycle, self._clock = cycle, clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fast-path")
        self._lock = threading.Lock()
        self._waiting: list[tuple[Collected, frozenset[HardFaultSign]]] = []

    def offer(self, collected: Collected) -> None:
        """Takes one scrape or reading as soon as it is normalised. Never raises, never waits."""
        signs = signs_of(collected.batches, collected.events, self._clock.now())
        signs = frozenset(sign for sign in signs if not self._cycle.is_known(sign))
        if not signs:
            return
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                return
            self._waiting.append((collected, signs))
        try:
            self._thread.submit(self._decide)
        except RuntimeError:  # it is closed: the engine ends
            return

    def _decide(self) -> None:
        """Decides about everything that waits; a call that finds nothing was covered by an earlier one."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        signs = frozenset(sign for _, those in waiting for sign in those)
        try:
            self._cycle.decide_early([collected for collected, _ in waiting], signs)
        except OutriderError as error:
            _log.error("early_decision_failed", error=error.message, hint=error.hint)
        except Exception as error:  # noqa: BLE001 - the cycle decides instead, and reports what is wrong for it, too
            _log.exception("early_decision_failed", error=str(error))

    def close(self) -> None:
        """Waits for the decision in progress."""
        self._thread.shutdown(wait=True, cancel_futures=True)
