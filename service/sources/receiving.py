"""Builds both ends of ingest from settings: the settings of the API's endpoints, and the engine's source."""

from __future__ import annotations

import re
from collections.abc import Mapping

from collectors.pipeline.scrape_manager import PushSource
from collectors.receive.consumer import PushReceiver, ReceiveLimits
from collectors.receive.kpi import KpiLimits, KpiValues
from collectors.receive.routing import EntityTemplate, ReceiveRule
from outrider.clock import Clock, SystemClock
from outrider.records.ingest_buffer import IngestBuffer, PushedBlock, Waiting
from service.config.api_settings import IngestSettings
from service.config.receive_settings import ReceiveRuleSettings
from service.config.settings import Settings, read_secret
from store import factory, migrate


def ingest_settings(settings: Settings) -> IngestSettings | None:
    """Returns the settings of the ingest endpoints, None if ingest is off. Raises ConfigError for a bad token."""
    given = settings.receive
    if not given.enabled:
        return None
    return IngestSettings(
        token=read_secret(given.token_file) if given.token_file is not None else "",
        rules=rules(settings),
        body_bytes=given.body_limit_bytes,
        unpacked_bytes=given.unpacked_limit_bytes,
        samples_per_request=given.samples_per_request,
        samples_per_minute=given.samples_per_minute,
        buffer_bytes=given.buffer_limit_bytes,
        kpis=KpiLimits(late=given.kpi_late),
        kpi_services=tuple(given.kpi_services),
    )


def pushed(settings: Settings) -> PushSource | None:
    """Returns the engine's reader of the ingest buffer, None if ingest is off. Raises StoreError."""
    # Pushed samples carry the time of the API's clock, which is real time even if the fleet has a clock of its own.
    return (
        _received(settings, factory.open_ingest_buffer(_state_url(settings)), SystemClock())
        if settings.receive.enabled
        else None
    )


def watching(settings: Settings, clock: Clock) -> PushSource | None:
    """Returns a second reader, which removes nothing. ``clock`` is that of the ingest endpoints.

    None if ingest is off or there is no store yet.
    """
    if not settings.receive.enabled or migrate.revision(settings.store.url)["state"] is None:
        return None
    return _received(settings, _ReadOnlyBuffer(factory.open_ingest_buffer(_state_url(settings))), clock)


def _state_url(settings: Settings) -> str:
    return factory.urls_of(settings.store.url)[0]


def _received(settings: Settings, spool: IngestBuffer, clock: Clock) -> PushReceiver:
    given = settings.receive
    limits = ReceiveLimits(
        samples_per_cycle=given.samples_per_cycle,
        most_targets=given.most_targets,
        series_per_target=given.series_per_target,
        series=given.most_series,
        settle=given.settle,
        silent_after=given.silent_after,
        forget_after=given.forget_after,
    )
    return PushReceiver(
        spool,
        settings.cluster,
        clock,
        rules=rules(settings),
        limits=limits,
        kpis=KpiValues(given.kpi_hold, given.main_kpi),
    )


class _ReadOnlyBuffer:
    """A read-only view of an ingest buffer. Only the engine removes blocks and counts dropped samples."""

    def __init__(self, spool: IngestBuffer) -> None:
        self._spool = spool

    def put(self, block: PushedBlock, most_bytes: int) -> bool:
        return self._spool.put(block, most_bytes)

    def take(self, after: int, most_samples: int) -> tuple[PushedBlock, ...]:
        return self._spool.take(after, most_samples)

    def release(self, until: int) -> None:
        """Does nothing: the engine does."""

    def waiting(self) -> Waiting:
        return self._spool.waiting()

    def count(self, dropped: Mapping[str, int]) -> None:
        """Does nothing: the engine does."""

    def counted(self) -> dict[str, int]:
        return self._spool.counted()

    def close(self) -> None:
        self._spool.close()


def rules(settings: Settings) -> tuple[ReceiveRule, ...]:
    """Returns the configured rules; both ends use the same numbering."""
    return tuple(_rule(rule) for rule in settings.receive.rules)


def _rule(given: ReceiveRuleSettings) -> ReceiveRule:
    entity = given.entity
    return ReceiveRule(
        match={label: re.compile(text) for label, text in given.match.items()},
        adapter=given.adapter,
        entity=None if entity is None else EntityTemplate(entity.kind, entity.name, entity.namespace, entity.cluster),
        labels=given.labels,
    )
