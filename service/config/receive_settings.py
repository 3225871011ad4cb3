"""Ingestion: samples of other monitors, and business KPIs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field

from collectors.mapping.registry import ADAPTERS
from outrider.errors import ConfigProblem
from outrider.model import EntityKind
from outrider.text import yaml_file
from service.config.alert_receive_settings import AlertReceiveSettings, alert_receive_problems
from service.config.settings_base import Duration, Section

_Count = Annotated[int, Field(gt=0)]
_MEBIBYTE = 1024 * 1024


class PushedEntitySettings(Section):
    """Entity of a pushing target; `{label}` is replaced by that label of the target."""

    kind: EntityKind = Field(description="Entity kind: replica, node, gpu, pod, workload, service or cluster.")
    name: str = Field(description="Entity name, for example `{pod}`.", min_length=1)
    namespace: str | None = Field(None, description="Namespace, for example `{namespace}`.")
    cluster: str | None = Field(None, description="Cluster, if it differs from the configured one.", pattern=r"^[^/]+$")


class ReceiveRuleSettings(Section):
    """Adapter for some of the pushed series. Without a rule the metric names decide."""

    match: dict[str, str] = Field(
        description=(
            "Map from label to a regular expression for its whole value. `__name__` is the metric; OTLP "
            "resource attributes are labels such as `service_name`."
        ),
        min_length=1,
    )
    adapter: str | None = Field(None, description="Adapter for these series. Without it they are dropped on purpose.")
    entity: PushedEntitySettings | None = Field(
        None, description="Entity of the target. Default: from labels such as pod and node."
    )
    labels: dict[str, str] = Field(
        {}, description="Labels of the target, as under collect.targets; `{label}` is substituted."
    )


class ReceiveSettings(Section):
    """Ingestion: Prometheus remote write, OTLP metrics, business KPIs, alerts of other monitors."""

    enabled: bool = Field(default=True, description="Enable the ingest endpoints; senders require a token.")
    token_file: Path | None = Field(
        None,
        description="Token for the ingest endpoints of metrics, KPIs and logs only. The admin token works too.",
    )
    rules: list[ReceiveRuleSettings] = Field([], description="Rules that select an adapter; the first match applies.")
    body_limit_bytes: _Count = Field(
        16 * _MEBIBYTE, description="Maximum size of a request; larger ones are rejected (413)."
    )
    unpacked_limit_bytes: _Count = Field(128 * _MEBIBYTE, description="Maximum size after decompression.")
    samples_per_request: _Count = Field(500_000, description="Maximum samples per request; more are rejected (413).")
    samples_per_minute: _Count = Field(
        6_000_000,
        description=("Maximum samples per minute and sender that an adapter reads; more are rejected for now (429)."),
    )
    buffer_limit_bytes: _Count = Field(
        256 * _MEBIBYTE, description="Maximum compressed size of the ingest buffer; more is rejected for now (503)."
    )
    samples_per_cycle: _Count = Field(2_000_000, description="Maximum samples that one cycle takes from the buffer.")
    most_targets: _Count = Field(20_000, description="Maximum number of pushing targets; others are dropped.")
    series_per_target: _Count = Field(50_000, description="Maximum series per target; others are dropped.")
    most_series: _Count = Field(3_000_000, description="Maximum series of all targets; others are dropped.")
    settle: Duration = Field(
        timedelta(seconds=5), description="Quiet time after which a pushed page is complete; senders split scrapes."
    )
    silent_after: Duration = Field(
        timedelta(minutes=3),
        description="Time without samples after which a pushing target is down and its values are stale.",
    )
    forget_after: Duration = Field(
        timedelta(hours=1), description=("Time without samples after which a pushing target is removed.")
    )
    main_kpi: dict[str, str] = Field(
        {},
        description=(
            "Map from service to the KPI that becomes its svc_kpi_value. Default: the only KPI of the service."
        ),
    )
    kpi_services: list[str] = Field(
        [], description="Services that have KPIs but no other metrics. Other services must be known."
    )
    kpi_late: Duration = Field(
        timedelta(minutes=10), description="Maximum age of a KPI value; older ones are rejected."
    )
    kpi_hold: Duration = Field(
        timedelta(minutes=5), description="Validity of a KPI value; longer than the time between two pushes."
    )
    alerts: AlertReceiveSettings = Field(AlertReceiveSettings(), description="Alerts of other monitors, by webhook.")


def receive_problems(settings: ReceiveSettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Checks that adapters exist, expressions compile, and targets are not removed before they are down."""
    for index, rule in enumerate(settings.rules):
        path = ("receive", "rules", index)
        if rule.adapter is not None and rule.adapter not in ADAPTERS:
            hint = yaml_file.near(rule.adapter, ADAPTERS) or f"; valid adapters: {', '.join(ADAPTERS)}"
            yield document.problem((*path, "adapter"), f"unknown adapter {rule.adapter!r}{hint}")
        for label, pattern in rule.match.items():
            try:
                re.compile(pattern)
            except re.error as error:
                yield document.problem((*path, "match", label), f"is not a regular expression: {error}")
    yield from alert_receive_problems(settings.alerts, document)
    if settings.forget_after <= settings.silent_after:
        yield document.problem(("receive", "forget_after"), "must be longer than silent_after")
