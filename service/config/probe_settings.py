"""Probes of service endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from collectors.probes.validity import PROMPT
from outrider.errors import ConfigProblem
from outrider.model import EntityKind, EntityRef
from outrider.text import yaml_file
from service.config.access_settings import AccessSettings
from service.config.settings_base import Duration, NameServers, Port

TYPES = ("generation", "http", "tls", "dns", "grpc")
_SHARED = {"type", "name", "service", "namespace", "cluster", "every", "timeout"} | set(AccessSettings.model_fields)
_URL = {"url", "cert_days"}
_OWN = {
    "generation": _URL
    | {"model", "prompt", "max_tokens", "api", "ttft_limit", "total_limit", "idle", "matches", "extra"},
    "http": {"method", "body", "status", "matches", "lacks", "follow_redirects"} | _URL,
    "tls": {"host", "port", "cert_days"},
    "dns": {"host", "record", "expect", "name_servers"},
    "grpc": {"url", "grpc_service"},
}  # fmt: skip
_NEEDED = {"generation": "url", "http": "url", "tls": "host", "dns": "host", "grpc": "url"}


class ProbeSettings(AccessSettings):
    """A probe of a service endpoint, as a client would use it."""

    type: Literal["generation", "http", "tls", "dns", "grpc"] = Field(
        description=(
            "generation: a short prompt to an OpenAI-compatible API, streamed; http: one request; tls: "
            "a certificate; dns: a lookup; grpc: the gRPC health service."
        )
    )
    name: str | None = Field(None, description="Unique name of the probe. Default: TYPE-SERVICE.", min_length=1)
    service: str = Field(description="Probed service, as in the service label of targets.", min_length=1)
    namespace: str | None = Field("default", description="Namespace of the service, as in its targets.")
    cluster: str | None = Field(None, description="Cluster, if it differs from the configured one.", pattern=r"^[^/]+$")
    url: str | None = Field(
        None,
        description=(
            "http: URL to request; generation: base URL of the API, for example "
            "https://chat.example/v1; grpc: grpc://host:port, or grpcs:// for TLS."
        ),
    )
    host: str | None = Field(None, description="tls: server; dns: name to resolve.", min_length=1)
    port: Port = Field(443, description="tls: TCP port.")
    every: Duration = Field(timedelta(seconds=30), description="Minimum time between two probes.")
    timeout: Duration = Field(timedelta(seconds=10), description="Deadline of a probe.")
    cert_days: Annotated[int, Field(ge=0)] = Field(14, description="Report a certificate with fewer days left.")
    method: Literal["GET", "HEAD", "POST", "PUT"] = Field("GET", description="http: request method.")
    body: str | None = Field(None, description="http: request body; set its type under headers.")
    status: list[Annotated[int, Field(ge=100, le=599)]] = Field(
        [], description="http: accepted status codes. Default: any 2xx."
    )
    matches: str | None = Field(
        None, description=("http, generation: regular expression that the response must contain.")
    )
    lacks: str | None = Field(None, description="http: regular expression that the response must not contain.")
    follow_redirects: bool = Field(False, description="http: follow redirects.")
    record: Literal["A", "AAAA", "CNAME", "MX", "NS", "PTR", "SRV", "TXT"] = Field("A", description="dns: record type.")
    expect: list[str] = Field([], description="dns: values that the records must include.")
    name_servers: NameServers = Field(
        [], description=("dns: name servers, optionally with :PORT. Default: those of the system.")
    )
    grpc_service: str = Field("", description="grpc: service name of the health check. Default: the whole server.")
    model: str | None = Field(None, description="generation: model. Default: the first one of /models.")
    prompt: str = Field(PROMPT, description="generation: prompt.", min_length=1)
    max_tokens: Annotated[int, Field(ge=1, le=1024)] = Field(
        16, description="generation: maximum number of tokens per probe."
    )
    api: Literal["chat", "completions"] = Field("chat", description="generation: /chat/completions or /completions.")
    ttft_limit: Duration | None = Field(None, description="generation: limit of the time to first token.")
    total_limit: Duration | None = Field(None, description="generation: limit of the total time.")
    idle: Duration = Field(timedelta(seconds=5), description="generation: a longer gap between tokens is a stall.")
    extra: dict[str, Any] = Field({}, description="generation: additional keys of the request; null removes a key.")

    @field_validator("matches", "lacks")
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        return value

    @field_validator("every", "timeout", "idle")
    @classmethod
    def _positive(cls, value: timedelta) -> timedelta:
        if value <= timedelta(0):
            raise ValueError("expected more than 0s")
        return value

    @property
    def label(self) -> str:
        """Name of the probe, configured or derived."""
        return self.name or f"{self.type}-{self.service}"

    def entity(self, cluster: str) -> EntityRef:
        """The probed service as an entity."""
        return EntityRef(self.cluster or cluster, EntityKind.SERVICE, self.namespace, self.service)


def probe_problems(probes: Sequence[ProbeSettings], document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Checks that each probe has a unique name, the address of its type, and no key of another type."""
    seen: set[str] = set()
    for index, probe in enumerate(probes):
        path: tuple[str | int, ...] = ("probes", index)
        if probe.label in seen:
            yield document.problem((*path, "name"), f"duplicate probe name {probe.label!r}")
        seen.add(probe.label)
        needed = _NEEDED[probe.type]
        if getattr(probe, needed) is None:
            yield document.problem((*path, needed), f"is required by a probe of type {probe.type}")
        for key in sorted(probe.model_fields_set - _SHARED - _OWN[probe.type]):
            types = ", ".join(kind for kind in TYPES if key in _OWN[kind])
            yield document.problem((*path, key), f"is for probes of type {types}, not {probe.type}")
        yield from _address(probe, path, document)


def _address(
    probe: ProbeSettings, path: tuple[str | int, ...], document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    if probe.url is not None:
        schemes = ("grpc", "grpcs") if probe.type == "grpc" else ("http", "https")
        try:
            parts = urlsplit(probe.url)
            valid = (
                parts.scheme in schemes and bool(parts.hostname) and (probe.type != "grpc" or parts.port is not None)
            )
        except ValueError:
            valid = False
        if not valid:
            expected = (
                "grpc://host:port or grpcs://host:port" if probe.type == "grpc" else "an http:// or https:// address"
            )
            yield document.problem((*path, "url"), f"expected {expected}, not {probe.url!r}")
    if probe.type == "grpc" and probe.tls is not None and probe.tls.insecure_skip_verify:
        yield document.problem((*path, "tls"), "gRPC always verifies the certificate; set ca_file instead")
