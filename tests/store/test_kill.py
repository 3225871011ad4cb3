"""A killed writer leaves complete cycles only, including every acknowledged one.

``make soak`` does it 200 times on each engine.
"""

from __future__ import annotations

import random

import pytest

from tests.store.killing import kill


@pytest.mark.slow
def test_only_complete_cycles_survive_five_consecutive_kills(store_url: str) -> None:
    rng, cycles = random.Random(1), 0
    for _ in range(5):
        result = kill(store_url, rng, cycles + 1)
        assert result.cycles >= max(result.acknowledged, cycles)
        cycles = result.cycles
