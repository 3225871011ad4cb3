"""The part of the configuration that says where targets are found."""

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
    """How the pages that are found are asked."""

    scheme: Literal["http", "https"] = Field("http", description="where the source does not say")
    path: str = Field("/metrics", description="where the source does not say", pattern=r"^/")
    port: Annotated[int, Field(gt=0, lt=65536)] | None = Field(None, description="where the source does not say")
    timeout: Duration = Field(timedelta(seconds=5), description="whole time a scrape may take")


class DiscoverSettings(AccessSettings):
    """A source of targets. The access keys say how the source is asked, those under ``scrape`` its targets."""

    type: Literal["static", "file", "http", "dns", "kubernetes"] = Field(
        description="static: the list below; file: Prometheus file_sd, JSON or YAML; http: Prometheus http_sd; "
        "dns: SRV or address records; kubernetes: annotated pods and services"
    )
    name: str | None = Field(None, description="unique name of the source; its type when not given", min_length=1)
    every: Duration | None = Field(
        None, description="least time between two readings; kubernetes 15s, file and dns 30s, http 1m when not given"
    )
    timeout: Duration = Field(timedelta(seconds=10), description="whole time an answer of the source may take")
    targets: list[str] = Field([], description="static: addresses, host:port")
    add_labels: dict[str, str] = Field({}, description="static: labels of these targets")
    files: list[str] = Field([], description="file: paths, with * and ? if need be")
    url: str | None = Field(None, pattern=r"^https?://", description="http: the list; kubernetes: the API server")
    names: list[str] = Field([], description="dns: names to look up")
    record: Literal["SRV", "A", "AAAA"] = Field("SRV", description="dns: kind of record; A and AAAA need scrape.port")
    name_servers: NameServers = Field([], description="dns: addresses to ask, with :PORT if need be; else the system's")
    namespaces: list[str] = Field([], description="kubernetes: only these namespaces; all when empty")
    label_selector: str = Field("", description="kubernetes: pods to scrape; annotated ones when empty")
    service_label: str = Field("app.kubernetes.io/name", description="kubernetes: label that names a pod's service")
    adapter: str | None = Field(None, description="reads every page; guessed from each page when not given")
    adapters: dict[str, str] = Field({}, description="value of adapter_label -> adapter")
    adapter_label: str = Field("job", description="label that chooses among adapters")
    keep: dict[str, str] = Field({}, description="label -> regular expression that its whole value must match")
    drop: dict[str, str] = Field({}, description="label -> regular expression of targets to leave out")
    labels: dict[str, str] = Field(
        {}, description=f"our label -> the source's label that gives it; ours are {', '.join(KEPT)}"
    )
    scrape: ScrapeSettings = Field(ScrapeSettings(), description="how the pages that are found are asked")

    @field_validator("keep", "drop")
    @classmethod
    def _patterns(cls, value: dict[str, str]) -> dict[str, str]:
        for label, pattern in value.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{label}: {pattern!r} is no regular expression: {error}") from error
        return value

    @field_validator("labels")
    @classmethod
    def _our_labels(cls, value: dict[str, str]) -> dict[str, str]:
        for label in value:
            if label not in KEPT:
                raise ValueError(
                    f"{label!r} is none of our labels{yaml_file.near(label, KEPT)}; ours are {', '.join(KEPT)}"
                )
        return value

    @field_validator("targets")
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        for one in value:
            if not is_address(one):
                raise ValueError(f"expected host:port, not {one!r}")
        return value

    @property
    def label(self) -> str:
        """Its name, given or made."""
        return self.name or self.type


def discover_usable(given: Sequence[DiscoverSettings], document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Each source has its own name, what its type needs, and no key of another type."""
    seen: set[str] = set()
    for index, one in enumerate(given):
        place: tuple[str | int, ...] = ("collect", "discover", index)
        if one.label in seen:
            yield document.problem((*place, "name"), f"a second source of targets is named {one.label!r}")
        seen.add(one.label)
        needed = _NEEDED[one.type]
        if not getattr(one, needed):
            yield document.problem((*place, needed), f"is needed by a source of type {one.type}")
        for key in sorted(one.model_fields_set & _ANY_OWN - _OWN[one.type]):
            types = ", ".join(kind for kind, keys in _OWN.items() if key in keys)
            yield document.problem((*place, key), f"is for sources of type {types}, not {one.type}")
        for key, names in (("adapter", [one.adapter] if one.adapter else []), ("adapters", one.adapters.values())):
            for name in (name for name in names if name not in ADAPTERS):
                known = yaml_file.near(name, ADAPTERS) or f"; known are {', '.join(ADAPTERS)}"
                yield document.problem((*place, key), f"no adapter {name!r}{known}")
        if one.type == "dns" and one.record != "SRV" and one.scrape.port is None:
            yield document.problem(
                (*place, "scrape"), f"{one.record} records bring no port: name one under scrape.port"
            )
