"""One asking of each probe, for ``outrider probe``."""

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
from service.config.probe_settings import ProbeSettings, probe_problems
from service.config.settings import Settings
from service.sources.probe_source import probe_of

_QUESTION = {"model", "prompt", "max_tokens"}
_OF_SCHEME = {"http": "http", "https": "http", "grpc": "grpc", "grpcs": "grpc", "tls": "tls", "dns": "dns"}


async def once(given: Sequence[ProbeSettings], cluster: str, clock: Clock, language: Language) -> dict[str, Any]:
    """The JSON of ``outrider probe``: every probe asked once, side by side."""
    at = clock.now()
    probes = [probe_of(one, cluster) for one in given]
    try:
        results = await asyncio.gather(*(probe.run(at) for probe in probes))
    finally:
        await asyncio.gather(*(probe.close() for probe in probes))
    told = zip(given, probes, results, strict=True)
    rows = [_row(one, probe, result, language) for one, probe, result in told]
    return {"at": rfc3339(at), "probes": rows}


def _row(given: ProbeSettings, probe: Probe, result: ProbeResult, language: Language) -> dict[str, Any]:
    return {
        "probe": probe.name,
        "type": given.type,
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
    """The probes of a configuration with these names; all of them for none. Raises UsageError."""
    known = {one.label: one for one in settings.probes}
    if not known:
        raise UsageError(
            "the configuration names no probe", hint="name a door: outrider probe --url https://chat.example/v1"
        )
    for name in names:
        if name not in known:
            near = yaml_file.near(name, known) or f"; known are {', '.join(known)}"
            raise UsageError(f"no probe is named {name!r}{near}")
    return [known[name] for name in names] if names else list(known.values())


def asking(given: ProbeSettings, more: Mapping[str, Any]) -> ProbeSettings:
    """The probe with another question, where it asks one. Raises UsageError for one that cannot be asked."""
    return _valid({**given.model_dump(exclude_unset=True), **more}) if given.type == "generation" else given


def at_url(url: str, kind: str | None, more: Mapping[str, Any]) -> ProbeSettings:
    """A probe of a door that no configuration names. Raises UsageError for one that cannot be asked.

    ``kind`` None: by the scheme; an http address with a model, or that ends as a generation API does, is one.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is no address", hint="write it as https://host:port/path") from error
    scheme = _OF_SCHEME.get(parts.scheme)
    if scheme is None or not host:
        raise UsageError(f"{url!r} is no address that can be probed", hint=f"it begins with one of {_schemes()}")
    generates = scheme == "http" and (
        bool(_QUESTION & more.keys()) or parts.path.rstrip("/").endswith(("/completions", "/v1"))
    )
    found = kind or ("generation" if generates else scheme)
    document: dict[str, Any] = {"type": found, "service": host, "name": host, **more}
    if found in ("tls", "dns"):
        document["host"] = host
        if found == "tls":
            document["port"] = port or 443
    else:
        document["url"] = url
    return _valid(document)


def _valid(document: Mapping[str, Any]) -> ProbeSettings:
    try:
        probe = ProbeSettings.model_validate(document)
    except pydantic.ValidationError as error:
        said = error.errors()[0]
        option = "-".join(str(part).replace("_", "-") for part in said["loc"][:1])
        raise UsageError(f"--{option}: {yaml_words.describe(said)}") from error
    for problem in probe_problems([probe], yaml_file.Document("", {}, {})):
        raise UsageError(f"--{problem.key.split('.')[-1].replace('_', '-')} {problem.message}")
    return probe


def _schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in _OF_SCHEME)
