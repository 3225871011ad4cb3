"""Target discovery."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, field_validator

from collectors.discovery.relabeling import KEPT
from collectors.discovery.target_groups import is_address
from collectors.mapping.registry import ADAPTERS
from outrider.errors import ConfigProblem
from outrider.text import yaml_file
from service.config.access_settings import AccessSettings
from service.config.settings_base import Duration, NameServers

_OWN = {
    "static": {"targets", "add_labels"},
    "file": {"files"},
    "http": {"url"},
    "dns": {"names", "record", "name_servers"},
    "kubernetes": {"url", "namespaces", "label_selector", "service_label"},
}
_NEEDED = {"static": "targets", "file": "files", "http": "url", "dns": "names", "kubernetes": "url"}
_ANY_OWN = set[str]().union(*_OWN.values())


class ScrapeSettings(AccessSettings):
    """Scrape options of discovered targets."""

    scheme: Literal["http", "https"] = Field("http", description="Default if the source gives none.")
    path: str = Field("/metrics", description="Default if the source gives none.", pattern=r"^/")
    port: Annotated[int, Field(gt=0, lt=65536)] | None = Field(None, description="Default if the source gives none.")
    timeout: Duration = Field(timedelta(seconds=5), description="Deadline of a scrape.")


class DiscoverSettings(AccessSettings):
    """A discovery source. The access keys apply to the source, those under ``scrape`` to its targets."""

    type: Literal["static", "file", "http", "dns", "kubernetes"] = Field(
        description=(
            "static: the list below; file: Prometheus file_sd, JSON or YAML; http: Prometheus http_sd; "
            "dns: SRV or address records; kubernetes: annotated pods and services."
        )
    )
    name: str | None = Field(None, description="Unique name of the source. Default: its type.", min_length=1)
    every: Duration | None = Field(
        None, description="Minimum time between two reads. Default: kubernetes 15s, file and dns 30s, http 1m."
    )
    timeout: Duration = Field(timedelta(seconds=10), description="Deadline of a read.")
    targets: list[str] = Field([], description="static: addresses as host:port.")
    add_labels: dict[str, str] = Field({}, description="static: labels of these targets.")
    files: list[str] = Field([], description="file: paths; * and ? are allowed.")
    url: str | None = Field(
        None, pattern=r"^https?://", description="http: URL of the list; kubernetes: URL of the API server."
    )
    names: list[str] = Field([], description="dns: names to resolve.")
    record: Literal["SRV", "A", "AAAA"] = Field("SRV", description="dns: record type; A and AAAA require scrape.port.")
    name_servers: NameServers = Field(
        [], description=("dns: name servers, optionally with :PORT. Default: those of the system.")
    )
    namespaces: list[str] = Field([], description="kubernetes: namespaces. Default: all.")
    label_selector: str = Field(
        "", description="kubernetes: label selector of pods to scrape. Default: annotated pods."
    )
    service_label: str = Field("app.kubernetes.io/name", description="kubernetes: pod label that names the service.")
    adapter: str | None = Field(None, description="Adapter of every metrics page. Default: detected per page.")
    adapters: dict[str, str] = Field({}, description="Map from the value of adapter_label to an adapter.")
    adapter_label: str = Field("job", description="Label that selects the adapter.")
    keep: dict[str, str] = Field(
        {}, description=("Map from label to a regular expression that its whole value must match.")
    )
    drop: dict[str, str] = Field({}, description="Map from label to a regular expression of targets to exclude.")
    labels: dict[str, str] = Field(
        {}, description=f"Map from label of Outrider to label of the source. Labels of Outrider: {', '.join(KEPT)}."
    )
    scrape: ScrapeSettings = Field(ScrapeSettings(), description="Scrape options of the discovered targets.")

    @field_validator("keep", "drop")
    @classmethod
    def _patterns(cls, value: dict[str, str]) -> dict[str, str]:
        for label, pattern in value.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{label}: {pattern!r} is not a regular expression: {error}") from error
        return value

    @field_validator("labels")
    @classmethod
    def _known_labels(cls, value: dict[str, str]) -> dict[str, str]:
        for label in value:
            if label not in KEPT:
                raise ValueError(f"unknown label {label!r}{yaml_file.near(label, KEPT)}; known: {', '.join(KEPT)}")
        return value

    @field_validator("targets")
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        for address in value:
            if not is_address(address):
                raise ValueError(f"expected host:port, not {address!r}")
        return value

    @property
    def label(self) -> str:
        """Name of the source, configured or derived."""
        return self.name or self.type


def discovery_problems(sources: Sequence[DiscoverSettings], document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Checks that each source has a unique name, the keys of its type, and no key of another type."""
    seen: set[str] = set()
    for index, source in enumerate(sources):
        path: tuple[str | int, ...] = ("collect", "discover", index)
        if source.label in seen:
            yield document.problem((*path, "name"), f"duplicate source name {source.label!r}")
        seen.add(source.label)
        needed = _NEEDED[source.type]
        if not getattr(source, needed):
            yield document.problem((*path, needed), f"is required by a source of type {source.type}")
        for key in sorted(source.model_fields_set & _ANY_OWN - _OWN[source.type]):
            types = ", ".join(kind for kind, keys in _OWN.items() if key in keys)
            yield document.problem((*path, key), f"is for sources of type {types}, not {source.type}")
        for key, names in (
            ("adapter", [source.adapter] if source.adapter else []),
            ("adapters", source.adapters.values()),
        ):
            for name in (name for name in names if name not in ADAPTERS):
                hint = yaml_file.near(name, ADAPTERS) or f"; valid adapters: {', '.join(ADAPTERS)}"
                yield document.problem((*path, key), f"unknown adapter {name!r}{hint}")
        if source.type == "dns" and source.record != "SRV" and source.scrape.port is None:
            yield document.problem((*path, "scrape"), f"{source.record} records have no port; set scrape.port")
