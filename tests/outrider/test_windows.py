"""Windows without a column of time."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from outrider import windows
from outrider.model import EntityKind, EntityRef, SignalKey, Window

KEY = SignalKey("engine_up")
ENTITY = EntityRef("c", EntityKind.REPLICA, "llm", "chat-0")


def empty() -> Window:
    return Window(
        EntityKind.REPLICA, (ENTITY,), np.empty(0), (KEY,), np.empty((1, 0, 1)), np.empty((1, 0, 1), dtype=np.uint8),
        timedelta(seconds=15),
    )  # fmt: skip


def test_an_empty_window_has_no_recent_columns() -> None:
    assert windows.recent(empty(), timedelta(minutes=1)) == slice(0, 0)


def test_the_last_value_of_an_empty_window_is_unknown() -> None:
    assert np.isnan(windows.last_value(empty(), KEY)).all()
