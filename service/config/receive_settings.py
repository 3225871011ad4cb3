"""The part of the configuration about what others push: samples of other monitors, and business KPIs."""

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
from service.config.settings_base import Duration, Section

_Count = Annotated[int, Field(gt=0)]
_MEBIBYTE = 1024 * 1024


class PushedEntitySettings(Section):
    """The component a pushed target stands for; `{label}` is replaced by that label of the target."""

    kind: EntityKind = Field(description="replica, node, gpu, pod, workload, service, cluster")
    name: str = Field(description="such as `{pod}`", min_length=1)
    namespace: str | None = Field(None, description="such as `{namespace}`")
    cluster: str | None = Field(None, description="its cluster, when it is another one", pattern=r"^[^/]+$")


class ReceiveRuleSettings(Section):
    """What reads some of what is pushed. Without a rule the names of metrics tell."""

    match: dict[str, str] = Field(
        description="label -> regular expression for its whole value; `__name__` is the metric, "
        "resource attributes of OTLP are labels such as `service_name`",
        min_length=1,
    )
    adapter: str | None = Field(None, description="what reads it; left out on purpose when not given")
    entity: PushedEntitySettings | None = Field(
        None, description="the component it speaks for; by labels such as pod and node when not given"
    )
    labels: dict[str, str] = Field(
        {}, description="labels of the target, as under collect.targets; `{label}` is filled"
    )


class ReceiveSettings(Section):
    """What others push: Prometheus remote write, OTLP metrics, business KPIs."""

    enabled: bool = Field(default=True, description="open the doors; who sends needs a token")
    token_file: Path | None = Field(
        None,
        description="a token that opens the doors of metrics, KPIs and logs alone; the admin token does too",
    )
    rules: list[ReceiveRuleSettings] = Field([], description="which adapter reads what; the first that matches counts")
    body_limit_bytes: _Count = Field(16 * _MEBIBYTE, description="a larger request is refused (413)")
    unpacked_limit_bytes: _Count = Field(128 * _MEBIBYTE, description="the same after decompression")
    samples_per_request: _Count = Field(500_000, description="a request with more is refused (413)")
    samples_per_minute: _Count = Field(
        6_000_000, description="what one sender may bring of what is kept; more is refused for now (429)"
    )
    buffer_limit_bytes: _Count = Field(
        256 * _MEBIBYTE, description="what may wait for the engine, compressed; more is refused for now (503)"
    )
    samples_per_cycle: _Count = Field(2_000_000, description="what one cycle takes out of the buffer")
    most_targets: _Count = Field(20_000, description="targets that push; further ones are left out")
    series_per_target: _Count = Field(50_000, description="series of one target; further ones are left out")
    most_series: _Count = Field(3_000_000, description="series of all of them together; further ones are left out")
    settle: Duration = Field(
        timedelta(seconds=5), description="a page is whole when nothing came for so long: senders split scrapes"
    )
    silent_after: Duration = Field(
        timedelta(minutes=3),
        description="a target that pushes nothing for so long is down, and an older page says nothing of now",
    )
    forget_after: Duration = Field(timedelta(hours=1), description="and after so long it is forgotten")
    main_kpi: dict[str, str] = Field(
        {}, description="service -> the KPI that becomes its svc_kpi_value; without, a service's only KPI does"
    )
    kpi_services: list[str] = Field(
        [], description="services that have KPIs though nothing else is watched of them; others must be known"
    )
    kpi_late: Duration = Field(timedelta(minutes=10), description="an older KPI value is refused")
    kpi_hold: Duration = Field(
        timedelta(minutes=5), description="how long a KPI value counts; longer than the time between two pushes"
    )


def receive_usable(given: ReceiveSettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Adapters are known, expressions can be read, and targets are not forgotten before they are down."""
    for index, rule in enumerate(given.rules):
        place = ("receive", "rules", index)
        if rule.adapter is not None and rule.adapter not in ADAPTERS:
            near = yaml_file.near(rule.adapter, ADAPTERS) or f"; known are {', '.join(ADAPTERS)}"
            yield document.problem((*place, "adapter"), f"there is no adapter {rule.adapter!r}{near}")
        for label, text in rule.match.items():
            try:
                re.compile(text)
            except re.error as error:
                yield document.problem((*place, "match", label), f"is no regular expression: {error}")
    if given.forget_after <= given.silent_after:
        yield document.problem(("receive", "forget_after"), "must be longer than silent_after")
