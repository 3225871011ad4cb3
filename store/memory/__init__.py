"""Both stores in memory, for tests, replays and drills.

Must not import ``store.admin`` or ``store.remote``.
"""

from __future__ import annotations

from store.memory.metrics import MemoryMetricStore
from store.memory.state import MemoryStateStore
from store.state.change_log import MemoryChangeLog
from store.state.ingest_buffer import MemoryIngestBuffer

__all__ = ["MemoryChangeLog", "MemoryIngestBuffer", "MemoryMetricStore", "MemoryStateStore"]
