"""Pushed pages and KPIs as scrapes, for recordings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from collectors.mapping.target import Target
from collectors.pipeline.scrape_manager import PushedBatch
from collectors.receive.kpi import MAIN
from collectors.scrape.result import Scrape
from outrider.model import EntityKind, SampleBatch
from outrider.vocabulary import catalog
from service.config.settings import Settings

_KPI_METRIC = "outrider_sdk_kpi"  # adapter sdk reads it as svc_kpi_value


def scrapes(pushed: PushedBatch) -> list[Scrape]:
    """Returns the pages of a round, and scrapes that their senders report as failed."""
    return [scrape if page is None else replace(scrape, page=page) for scrape, page in pushed.pages]


class Kpis:
    """KPIs as pages of adapter ``sdk``, which has one KPI per service: the main one."""

    def __init__(self, settings: Settings) -> None:
        self._cluster = settings.cluster
        self._named: dict[str, None] = {}

    @property
    def left_out(self) -> list[str]:
        """Messages about KPIs that were not recorded."""
        return list(self._named)

    def scrapes(self, pushed: PushedBatch, at: datetime) -> list[Scrape]:
        """Returns a page for each service that has a main KPI at this time."""
        return [
            scrape for batch in pushed.batches if batch.kind is EntityKind.SERVICE for scrape in self._page(batch, at)
        ]

    def _page(self, batch: SampleBatch, at: datetime) -> Iterator[Scrape]:
        (service,) = batch.entities
        values = dict(zip(batch.keys, batch.values[0].tolist(), strict=True))
        main = values.pop(MAIN, None)
        own = [key.name.removeprefix(catalog.KPI_PREFIX) for key in values]
        if main is None or len(own) > 1:
            reason = "a recording holds only the main KPI of a service, see receive.main_kpi"
            self._named[f"KPIs {', '.join(sorted(own))} of {service.name}: {reason}"] = None
        if main is not None:
            name = f"kpi-{service.namespace or 'default'}-{service.name}"
            target = Target(name, "sdk", "", service, {"service": service.name})
            yield Scrape(target, at, f"{_KPI_METRIC} {main!r}\n".encode(), None, 0.0)
