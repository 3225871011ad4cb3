"""Long-running processes collect garbage rarely, but completely."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from outrider import gc_tuning


class _Ring:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


@pytest.mark.slow
def test_frozen_objects_are_not_scanned_again() -> None:
    kept = [_Ring() for _ in range(10)]
    gc_tuning.settle()
    assert gc.get_freeze_count() > len(kept)
    assert not any(one is kept[0] for one in gc.get_objects(generation=2))


def test_later_reference_cycles_are_still_freed() -> None:
    gc_tuning.settle()
    lost = weakref.ref(_Ring())
    rings = [_Ring() for _ in range(gc.get_threshold()[0] + 1_000)]
    assert rings
    assert lost() is None
