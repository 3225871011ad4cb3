"""Builds both ends of ingestion from settings: the settings of the ingest endpoints, and the engine's source."""

from __future__ import annotations

import re
from collections.abc import Mapping

from collectors.pipeline.scrape_manager import PushSource
from collectors.receive.alert_formats.record import AlertRules
from collectors.receive.consumer import PushReceiver, ReceiveLimits
from collectors.receive.kpi import KpiLimits, KpiValues
from collectors.receive.routing import EntityTemplate, ReceiveRule
from detectors.hardware.xid import xids
from outrider.clock import Clock, SystemClock
from outrider.records.ingest_buffer import BufferSize, IngestBuffer, PushedBlock
from service.config.api_settings import AlertIngestSettings, IngestSettings
from service.config.receive_settings import ReceiveRuleSettings
from service.config.settings import Settings, read_secret
from service.config.settings_base import is_loopback_url
from store import factory, migrate


def ingest_settings(settings: Settings) -> IngestSettings | None:
    """Returns the settings of the ingest endpoints, None if ingestion is off. Raises ConfigError for a bad token."""
    options = settings.receive
    if not options.enabled:
        return None
    return IngestSettings(
        token=read_secret(options.token_file) if options.token_file is not None else "",
        rules=rules(settings),
        body_bytes=options.body_limit_bytes,
        unpacked_bytes=options.unpacked_limit_bytes,
        samples_per_request=options.samples_per_request,
        samples_per_minute=options.samples_per_minute,
        buffer_bytes=options.buffer_limit_bytes,
        kpis=KpiLimits(late=options.kpi_late),
        kpi_services=tuple(options.kpi_services),
        alerts=_alert_ingest(settings),
    )


def _alert_ingest(settings: Settings) -> AlertIngestSettings:
    options = settings.receive.alerts
    return AlertIngestSettings(
        rules=AlertRules(
            priorities={severity.lower(): priority for severity, priority in options.priorities.items()},
            faults=options.faults,
            code_faults={str(code): xid.fault for code, xid in xids().items() if xid.fault is not None},
            own_url="" if is_loopback_url(settings.notify.public_url) else settings.notify.public_url.rstrip("/"),
            language=settings.notify.language,
            expires_after=options.expire_after,
            most_alerts=options.per_request,
        ),
        mappings={name: source.mapping() for name, source in options.json_sources.items()},
        secrets={name: read_secret(file) for name, file in options.secret_files.items()},
        watchdogs=tuple(item.watchdog() for item in settings.watchdogs),
        per_minute=options.per_minute,
        most_firing=options.most_firing,
        body_bytes=options.body_limit_bytes,
    )


def pushed(settings: Settings) -> PushSource | None:
    """Returns the engine's reader of the ingest buffer, None if ingestion is off. Raises StoreError."""
    # Pushed samples carry the time of the API's clock, which is real time even if the fleet has a clock of its own.
    return (
        _received(settings, factory.open_ingest_buffer(_state_url(settings)), SystemClock())
        if settings.receive.enabled
        else None
    )


def watching(settings: Settings, clock: Clock) -> PushSource | None:
    """Returns a second reader, which removes nothing. ``clock`` is that of the ingest endpoints.

    None if ingestion is off or there is no store yet.
    """
    if not settings.receive.enabled or migrate.revision(settings.store.url)["state"] is None:
        return None
    return _received(settings, _ReadOnlyBuffer(factory.open_ingest_buffer(_state_url(settings))), clock)


def _state_url(settings: Settings) -> str:
    return factory.urls_of(settings.store.url)[0]


def _received(settings: Settings, buffer: IngestBuffer, clock: Clock) -> PushReceiver:
    options = settings.receive
    limits = ReceiveLimits(
        samples_per_cycle=options.samples_per_cycle,
        most_targets=options.most_targets,
        series_per_target=options.series_per_target,
        series=options.most_series,
        settle=options.settle,
        silent_after=options.silent_after,
        forget_after=options.forget_after,
    )
    return PushReceiver(
        buffer,
        settings.cluster,
        clock,
        rules=rules(settings),
        limits=limits,
        kpis=KpiValues(options.kpi_hold, options.main_kpi),
    )


class _ReadOnlyBuffer:
    """A read-only view of an ingest buffer. Only the engine removes blocks and counts dropped samples."""

    def __init__(self, buffer: IngestBuffer) -> None:
        self._buffer = buffer

    def put(self, block: PushedBlock, most_bytes: int) -> bool:
        return self._buffer.put(block, most_bytes)

    def take(self, after: int, most_samples: int) -> tuple[PushedBlock, ...]:
        return self._buffer.take(after, most_samples)

    def release(self, until: int) -> None:
        """Does nothing: the engine does."""

    def waiting(self) -> BufferSize:
        return self._buffer.waiting()

    def count(self, dropped: Mapping[str, int]) -> None:
        """Does nothing: the engine does."""

    def counted(self) -> dict[str, int]:
        return self._buffer.counted()

    def close(self) -> None:
        self._buffer.close()


def rules(settings: Settings) -> tuple[ReceiveRule, ...]:
    """Returns the configured rules; both ends use the same numbering."""
    return tuple(_rule(rule) for rule in settings.receive.rules)


def _rule(options: ReceiveRuleSettings) -> ReceiveRule:
    entity = options.entity
    return ReceiveRule(
        match={label: re.compile(pattern) for label, pattern in options.match.items()},
        adapter=options.adapter,
        entity=None if entity is None else EntityTemplate(entity.kind, entity.name, entity.namespace, entity.cluster),
        labels=options.labels,
    )
