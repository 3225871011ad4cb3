"""Alerts of other monitors, received by webhook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from collectors.receive.alert_formats.json_mapping import RESOLVED, JsonMapping
from outrider.errors import ConfigProblem
from outrider.model import Priority
from outrider.text import yaml_file
from outrider.vocabulary.faults import faults
from service.config.settings_base import PositiveDuration, Section

BUILT_IN = ("alertmanager", "grafana", "cloudevents")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_Count = Annotated[int, Field(gt=0)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Templates = Annotated[list[str], BeforeValidator(_listed)]


class JsonSourceSettings(Section):
    """A monitor with a webhook of its own format. `{path.of.keys}` is replaced by the text at that path of an alert."""

    items: str = Field("", description="Path of the list of alerts. Default: the body is the list, or one alert.")
    name: Templates = Field(description="Name of the alert, for example `{rule.name}`.", min_length=1)
    status: Templates = Field([], description="Status. Default: every delivery is a firing alert.")
    resolved: list[str] = Field(list(RESOLVED), description="Values of the status that mean the end; any case.")
    fingerprint: Templates = Field([], description="Stable id of the alert. Default: a hash of its labels.")
    severity: Templates = Field([], description="Severity, see priorities.")
    labels: dict[str, Templates] = Field(
        {}, description="Map from label to its template. Labels such as node, pod and namespace name the entity."
    )
    summary: Templates = Field([], description="One line about the alert.")
    description: Templates = Field([], description="More about the alert.")
    url: Templates = Field([], description="Link to the alert.")
    runbook: Templates = Field([], description="Link to its runbook.")
    starts_at: Templates = Field([], description="Start, RFC 3339. Default: time of arrival.")
    ends_at: Templates = Field([], description="End, RFC 3339. Default: time of arrival.")

    def mapping(self) -> JsonMapping:
        """Returns the mapping of the decoder."""
        return JsonMapping(
            name=tuple(self.name),
            items=self.items,
            status=tuple(self.status),
            resolved=tuple(value.lower() for value in self.resolved),
            fingerprint=tuple(self.fingerprint),
            severity=tuple(self.severity),
            labels={label: tuple(templates) for label, templates in self.labels.items()},
            summary=tuple(self.summary),
            description=tuple(self.description),
            url=tuple(self.url),
            runbook=tuple(self.runbook),
            starts_at=tuple(self.starts_at),
            ends_at=tuple(self.ends_at),
        )


class AlertReceiveSettings(Section):
    """Alerts of other monitors: Alertmanager, Grafana, CloudEvents, JSON of any shape."""

    secret_files: dict[str, Path] = Field(
        {}, description="Map from source to a file with its HMAC secret. Signed requests need no token."
    )
    priorities: dict[str, Priority] = Field(
        {}, description="Map from severity to priority. Default: critical P1, warning P2, info P3; others P2."
    )
    faults: dict[str, str] = Field(
        {}, description="Map from alert name to a fault of the catalog, for alerts that state one."
    )
    json_sources: dict[str, JsonSourceSettings] = Field(
        {}, description="Map from source name to the mapping of its JSON; posted to /api/v1/received/json/NAME."
    )
    expire_after: PositiveDuration = Field(
        timedelta(hours=24), description="Time after which an alert that its source does not repeat is resolved."
    )
    per_minute: _Count = Field(60_000, description="Maximum alerts per minute and sender; more are rejected (429).")
    per_request: _Count = Field(10_000, description="Maximum alerts per request; more are rejected (413).")
    most_firing: _Count = Field(20_000, description="Maximum firing alerts of all sources; more are rejected (503).")
    body_limit_bytes: _Count = Field(8 * 1024 * 1024, description="Maximum size of a request (413).")


def alert_receive_problems(settings: AlertReceiveSettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Checks that faults and sources exist, and that names fit into a URL."""
    path = ("receive", "alerts")
    for name, fault in settings.faults.items():
        if fault not in faults():
            yield document.problem((*path, "faults", name), f"unknown fault {fault!r}{yaml_file.near(fault, faults())}")
    for name in settings.json_sources:
        if not _NAME.fullmatch(name) or name in BUILT_IN:
            message = (
                "expected a name of lowercase letters, digits, - and _ that is not alertmanager, grafana or cloudevents"
            )
            yield document.problem((*path, "json_sources", name), message)
    known = (*BUILT_IN, *settings.json_sources)
    yield from _unknown_sources(settings.secret_files, known, document)


def _unknown_sources(
    secrets: Mapping[str, Path], known: Iterable[str], document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    choices = tuple(known)
    for name in secrets:
        if name not in choices:
            hint = yaml_file.near(name, choices) or f"; known: {', '.join(choices)}"
            yield document.problem(("receive", "alerts", "secret_files", name), f"no source is named {name!r}{hint}")
