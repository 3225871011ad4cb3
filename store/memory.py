"""Both stores in memory, for tests, replays and drills."""

from __future__ import annotations

from store.ledger import MemoryLedger
from store.memory_metrics import MemoryMetricStore
from store.memory_state import MemoryStateStore
from store.spool import MemorySpool

__all__ = ["MemoryLedger", "MemoryMetricStore", "MemorySpool", "MemoryStateStore"]
