"""Synthetic windows: a test gives only the columns that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from outrider.model import CellStatus, EntityKind, EntityRef, Event, Finding, SignalKey, Window
from outrider.ports import Detector
from outrider.topology import Topology

START = 1_800_000_000.0
STEP = timedelta(seconds=5)


def entity(kind: EntityKind, name: str) -> EntityRef:
    namespace = None if kind in (EntityKind.NODE, EntityKind.GPU) else "default"
    return EntityRef("lab", kind, namespace, name)


@pytest.fixture
def ref() -> Callable[[EntityKind, str], EntityRef]:
    return entity


@pytest.fixture
def window_of() -> Callable[..., Window]:
    """``window_of(kind, {name: {signal: values over time}})``; None is an absent cell, and so is a missing column."""

    def build(
        kind: EntityKind,
        rows: Mapping[str, Mapping[str, Sequence[float | None]]],
        *,
        statuses: Mapping[tuple[str, str, int], CellStatus] | None = None,
        events: Sequence[Event] = (),
        namespace: str | None = "",
        start: float = START,
    ) -> Window:
        names = list(rows)
        keys = list(dict.fromkeys(SignalKey.parse(name) for row in rows.values() for name in row))
        length = max((len(values) for row in rows.values() for values in row.values()), default=0)
        values = np.full((len(names), length, len(keys)), np.nan)
        for i, name in enumerate(names):
            for signal, column in rows[name].items():
                values[i, :, keys.index(SignalKey.parse(signal))] = [np.nan if v is None else v for v in column]
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        for (name, signal, column_number), cell_status in (statuses or {}).items():
            cell = (names.index(name), column_number, keys.index(SignalKey.parse(signal)))
            status[cell] = cell_status
            if cell_status not in (CellStatus.PRESENT, CellStatus.BELOW_FIRST_BUCKET):
                values[cell] = np.nan
        refs = tuple(entity(kind, n) if namespace == "" else EntityRef("lab", kind, namespace, n) for n in names)
        times = start + STEP.total_seconds() * np.arange(length)
        return Window(kind, refs, times, tuple(keys), values, status, STEP, tuple(events))

    return build


@pytest.fixture
def now_of() -> Callable[[Window], datetime]:
    return lambda window: datetime.fromtimestamp(window.times[-1], tz=UTC)


@pytest.fixture
def findings_of(now_of: Callable[[Window], datetime]) -> Callable[..., list[Finding]]:
    """Runs a detector on growing windows, as the cycles do, and returns the findings of the last one."""

    def run(
        detector: Detector, window: Window, topology: Topology | None = None, *, first: int = 1, verdicts: Any = None
    ) -> list[Finding]:
        state, results = detector.initial(), ()
        for length in range(first, window.times.size + 1):
            part = Window(
                window.kind,
                window.entities,
                window.times[:length],
                window.keys,
                window.values[:, :length],
                window.status[:, :length],
                window.step,
                window.events,
            )
            state, results = detector.detect(state, part, topology or Topology.build(()), now_of(part))
        if verdicts is not None:
            verdicts.extend(item for item in results if not isinstance(item, Finding))
        return [item for item in results if isinstance(item, Finding)]

    return run
