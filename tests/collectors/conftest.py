"""Synthetic pages, and a bench that feeds them to a normaliser as if scraped every 15 s."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from collectors.exposition.parser import Parser
from collectors.mapping.loader import read_adapter
from collectors.mapping.target import target_of
from collectors.normalise.normalise import Normaliser
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason
from outrider.model import CellStatus, EntityKind, SignalKey

# what tests of several folders share
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Bench:
    """One target with its history and the result of its last scrape."""

    def __init__(self, adapter: str, *, text: str | None = None, **target) -> None:
        adapters = {adapter: read_adapter(text, "test.yaml")} if text else None
        document = {"name": "target-0", "adapter": "vllm" if text else adapter, **target}
        self.target = target_of("test", document)
        if text:
            self.target = replace(self.target, adapter=adapter)
        self.parser = Parser()
        self.normaliser = Normaliser(adapters)
        self.at = START - timedelta(seconds=15)
        self.collected = None

    def scrape(self, page: str, *, after: float = 15.0, **scrape_fields):
        self.at += timedelta(seconds=after)
        scrape = Scrape(self.target, self.at, page.encode(), None, 0.01, **scrape_fields)
        self.page = self.parser.parse(page.encode())
        self.collected = self.normaliser.normalise(scrape, self.page)
        return self.collected

    def fail(self, reason: str = CollectReason.REFUSED, *, after: float = 15.0, **scrape_fields):
        self.at += timedelta(seconds=after)
        error = CollectError("target-0: no", reason=reason)
        self.collected = self.normaliser.normalise(
            Scrape(self.target, self.at, None, error, 0.02, **scrape_fields), None
        )
        return self.collected

    def batch(self, kind: EntityKind):
        return next(
            one
            for one in self.collected.batches
            if one.kind is kind and not (kind is EntityKind.WORKLOAD and one.entities[0].namespace == "targets")
        )

    def watch(self):
        return next(one for one in self.collected.batches if one.entities[0].namespace == "targets")

    def cell(self, signal: str, kind: EntityKind = EntityKind.REPLICA, name: str | None = None):
        """The value of a PRESENT cell, else its status."""
        batch = self.batch(kind)
        names = [entity.name for entity in batch.entities]
        row = names.index(name) if name is not None else 0
        column = batch.keys.index(SignalKey.parse(signal))
        status = CellStatus(int(batch.status[row, column]))
        value = float(batch.values[row, column])
        assert np.isnan(value) == (status is not CellStatus.PRESENT)
        return value if status is CellStatus.PRESENT else status


@pytest.fixture(scope="session")
def bench():
    return Bench
