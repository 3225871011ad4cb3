"""A writer that is killed leaves whole cycles: what it said was written is there, and nothing by halves.

``make soak`` does it 200 times on each engine.
"""

from __future__ import annotations

import random

from tests.store.killing import kill


def test_only_whole_cycles_survive_ten_kills_9_one_after_the_other(store_url: str) -> None:
    rng, cycles = random.Random(1), 0
    for _ in range(10):
        left = kill(store_url, rng, cycles + 1)
        assert left.cycles >= max(left.acknowledged, cycles)
        cycles = left.cycles
