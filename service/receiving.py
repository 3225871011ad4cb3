"""Builds both ends of the doors from settings: what the API needs, and what the engine takes in."""

from __future__ import annotations

import re

from collectors.collect import Pushed
from collectors.receive_kpi import KpiLimits, KpiValues
from collectors.receive_match import EntityTemplate, ReceiveRule
from collectors.received import Received, ReceiveLimits
from outrider.clock import SystemClock
from service.api.settings import DoorSettings
from service.receive_settings import ReceiveRuleSettings
from service.settings import Settings, read_secret
from store import sql


def doors(settings: Settings) -> DoorSettings | None:
    """What the API is told of its doors; None when they are shut. Raises ConfigError for an unreadable token."""
    given = settings.receive
    if not given.enabled:
        return None
    return DoorSettings(
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


def pushed(settings: Settings) -> Pushed | None:
    """What the engine takes out of the buffer; None when the doors are shut. Raises StoreError."""
    given = settings.receive
    if not given.enabled:
        return None
    state_url, _ = sql.urls_of(settings.store.url)
    limits = ReceiveLimits(
        samples_per_cycle=given.samples_per_cycle,
        most_targets=given.most_targets,
        series_per_target=given.series_per_target,
        series=given.most_series,
        settle=given.settle,
        silent_after=given.silent_after,
        forget_after=given.forget_after,
    )
    # What comes is stamped by the API's clock, which is the real one also where the fleet has a time of its own.
    return Received(
        sql.open_spool(state_url),
        settings.cluster,
        SystemClock(),
        rules=rules(settings),
        limits=limits,
        kpis=KpiValues(given.kpi_hold, given.main_kpi),
    )


def rules(settings: Settings) -> tuple[ReceiveRule, ...]:
    """The rules as configured; both ends number them alike."""
    return tuple(_rule(rule) for rule in settings.receive.rules)


def _rule(given: ReceiveRuleSettings) -> ReceiveRule:
    entity = given.entity
    return ReceiveRule(
        match={label: re.compile(text) for label, text in given.match.items()},
        adapter=given.adapter,
        entity=None if entity is None else EntityTemplate(entity.kind, entity.name, entity.namespace, entity.cluster),
        labels=given.labels,
    )
