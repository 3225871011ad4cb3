"""Runs each probe once, for ``outrider probe``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import pydantic

from collectors.probes.result import Probe, ProbeResult
from outrider.clock import Clock, rfc3339
from outrider.documents import serialization
from outrider.errors import UsageError
from outrider.text import yaml_file, yaml_words
from outrider.text.i18n import Language, translate
from outrider.text.unknown_names import no_such
from service.config.probe_settings import ProbeSettings, probe_problems
from service.config.settings import Settings
from service.sources.probe_source import probe_of

_REQUEST_OPTIONS = {"model", "prompt", "max_tokens"}
_TYPE_OF_SCHEME = {"http": "http", "https": "http", "grpc": "grpc", "grpcs": "grpc", "tls": "tls", "dns": "dns"}


async def once(selected: Sequence[ProbeSettings], cluster: str, clock: Clock, language: Language) -> dict[str, Any]:
    """Runs every probe once, concurrently. Returns the JSON of ``outrider probe``."""
    at = clock.now()
    probes = [probe_of(settings, cluster) for settings in selected]
    try:
        results = await asyncio.gather(*(probe.run(at) for probe in probes))
    finally:
        await asyncio.gather(*(probe.close() for probe in probes))
    runs = zip(selected, probes, results, strict=True)
    rows = [_row(settings, probe, result, language) for settings, probe, result in runs]
    return {"at": rfc3339(at), "probes": rows}


def _row(settings: ProbeSettings, probe: Probe, result: ProbeResult, language: Language) -> dict[str, Any]:
    return {
        "probe": probe.name,
        "type": settings.type,
        "service": serialization.entity(probe.service),
        "address": probe.address,
        "success": result.outcome.success,
        "outcome": result.outcome.value,
        "means": translate(f"collect.probe.{result.outcome.value}", language),
        "said": result.message,
        "status": result.status,
        "e2e_seconds": serialization.finite(result.e2e_seconds),
        "ttft_seconds": serialization.finite(result.ttft_seconds),
        "itl_seconds": serialization.finite(result.itl_seconds),
        "tokens": result.tokens,
        "cert_expiry_seconds": serialization.finite(result.cert_expiry_seconds),
    }


def chosen(settings: Settings, names: Sequence[str]) -> list[ProbeSettings]:
    """Returns the configured probes with these names; all without a name. Raises UsageError."""
    known = {probe.label: probe for probe in settings.probes}
    if not known:
        raise UsageError(
            "no probes are configured", hint="name an endpoint: outrider probe --url https://chat.example/v1"
        )
    for name in names:
        if name not in known:
            raise no_such("probe", name, known)
    return [known[name] for name in names] if names else list(known.values())


def with_request(probe: ProbeSettings, options: Mapping[str, Any]) -> ProbeSettings:
    """Returns a generation probe with other request options, any other probe unchanged. Raises UsageError."""
    return _valid({**probe.model_dump(exclude_unset=True), **options}) if probe.type == "generation" else probe


def at_url(url: str, kind: str | None, options: Mapping[str, Any]) -> ProbeSettings:
    """Returns a probe of an endpoint that is not configured. Raises UsageError if it cannot be probed.

    If ``kind`` is None, the scheme decides. An HTTP URL with request options or with the path of a generation API is
    a generation probe.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is not a URL", hint="write it as https://host:port/path") from error
    scheme = _TYPE_OF_SCHEME.get(parts.scheme)
    if scheme is None or not host:
        raise UsageError(f"{url!r} cannot be probed", hint=f"the URL must begin with one of {_schemes()}")
    generates = scheme == "http" and (
        bool(_REQUEST_OPTIONS & options.keys()) or parts.path.rstrip("/").endswith(("/completions", "/v1"))
    )
    probe_type = kind or ("generation" if generates else scheme)
    document: dict[str, Any] = {"type": probe_type, "service": host, "name": host, **options}
    if probe_type in ("tls", "dns"):
        document["host"] = host
        if probe_type == "tls":
            document["port"] = port or 443
    else:
        document["url"] = url
    return _valid(document)


def _valid(document: Mapping[str, Any]) -> ProbeSettings:
    try:
        probe = ProbeSettings.model_validate(document)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        option = "-".join(str(part).replace("_", "-") for part in first["loc"][:1])
        raise UsageError(f"--{option}: {yaml_words.describe(first)}") from error
    for problem in probe_problems([probe], yaml_file.Document("", {}, {})):
        raise UsageError(f"--{problem.key.split('.')[-1].replace('_', '-')} {problem.message}")
    return probe


def _schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in _TYPE_OF_SCHEME)
