"""Changes during an outage of the change log are stored in order afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from collectors.scrape.target_health import TargetHealth
from outrider.errors import StoreUnavailableError
from outrider.model import EntityKind, EntityRef, Event, EventKind
from outrider.ports import Collected
from outrider.records.change_log import Change
from service.sources.change_log_source import ChangeLogContributor
from service.sources.composite_source import CompositeSource
from store.memory import MemoryChangeLog

T0 = datetime(2026, 3, 1, tzinfo=UTC)
CHAT = EntityRef("c", EntityKind.SERVICE, "llm", "chat")


class Source:
    """One change a round."""

    health: ClassVar[list[TargetHealth]] = []

    async def collect(self, at: datetime) -> Collected:
        name = f"{at:%M}"
        return Collected(events=(Event(name, EventKind.CHANGE, CHAT, at, "kubernetes", "image", {}, name),))

    async def close(self) -> None:
        pass


class FailingChangeLog(MemoryChangeLog):
    away = False

    def append_changes(self, changes: Sequence[Change]) -> int:
        if self.away:
            raise StoreUnavailableError("It does not answer.")
        return super().append_changes(changes)


def test_changes_during_an_outage_are_stored_afterwards() -> None:
    ledger = FailingChangeLog()
    pages: Any = Source()
    source = CompositeSource(pages, (ChangeLogContributor(ledger),))
    for minute, away in enumerate((False, True, True, False)):
        ledger.away = away
        asyncio.run(source.collect(T0 + timedelta(minutes=minute)))
    assert [change.at.minute for change in reversed(ledger.changes())] == [0, 1, 2, 3]
