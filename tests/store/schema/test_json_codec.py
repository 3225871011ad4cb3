from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from outrider.errors import StoreError
from outrider.model import EntityKind, EntityRef, Finding, Message, NotifyReason, Priority, TimeRange
from store.schema import json_codec

T0 = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
GPU = EntityRef("prod", EntityKind.GPU, None, "GPU-1/mig-2")


def test_timestamps_keep_microseconds_and_names_keep_slashes() -> None:
    span = TimeRange(T0, T0 + timedelta(seconds=1.5))
    finding = Finding("d", GPU, ("a", "b"), Priority.P1, 0.25, float("inf"), None, span, (), "f")
    restored = json_codec.loads(Finding, json_codec.dumps(finding))
    assert restored.window == span
    assert restored.entity == GPU
    assert restored.signals == ("a", "b")
    assert restored.observed is None  # JSON has no infinity


@dataclass(frozen=True)
class Old:
    name: str


@dataclass(frozen=True)
class New:
    name: str
    age: int = 7
    until: dict[EntityRef, timedelta] | None = None


def test_rows_of_older_and_newer_releases_are_readable() -> None:
    assert json_codec.loads(New, json_codec.dumps(Old("x"))) == New("x")
    assert json_codec.loads(Old, json_codec.dumps(New("x", 3, {GPU: timedelta(minutes=1)}))) == Old("x")
    assert json_codec.loads(New, json_codec.dumps(New("x", 3, {GPU: timedelta(minutes=1)}))).until == {
        GPU: timedelta(minutes=1)
    }


@pytest.mark.parametrize("text", ["{", "{}", '{"id": 1, "reason": "no such reason"}'])
def test_a_damaged_row_is_a_store_error(text: str) -> None:
    with pytest.raises(StoreError, match="A stored Message cannot be read") as caught:
        json_codec.loads(Message, text)
    assert caught.value.hint
    assert NotifyReason.OPENED.value in json_codec.dumps(NotifyReason.OPENED)
