"""Probes as a contributor to each cycle."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from collectors.net.dns_client import NameServer
from collectors.probes.base import ProbeRequest
from collectors.probes.completion import CompletionProbe, CompletionRequest
from collectors.probes.dns import DnsProbe
from collectors.probes.grpc_health import GrpcHealthProbe
from collectors.probes.http import ExpectedResponse, HttpProbe
from collectors.probes.result import Probe
from collectors.probes.scheduler import ProbeScheduler
from collectors.probes.tls import TlsProbe
from collectors.scrape.target_health import TargetHealth
from outrider.model import Event, SampleBatch
from outrider.ports import Collected
from service.config.probe_settings import ProbeSettings
from service.sources.composite_source import SilentContributor, TopologyOverlay


class ProbeContributor(SilentContributor):
    """Adds the results of probes, and the probed services to the topology."""

    def __init__(self, probes: ProbeScheduler) -> None:
        """``probes`` are closed with this contributor."""
        self._probes = probes
        self._batches: tuple[SampleBatch, ...] = ()
        self._overlay = TopologyOverlay()

    @property
    def health(self) -> list[TargetHealth]:
        """Health of each probe."""
        return self._probes.health

    async def read(self, at: datetime) -> tuple[Event, ...]:
        """Runs the probes that are due. They return no events."""
        self._batches = await self._probes.collect(at)
        return ()

    async def add(self, collected: Collected, at: datetime) -> Collected:
        """Adds the values of all probes."""
        del at
        topology = self._overlay.apply(collected.topology, self._probes.labels)
        return replace(collected, batches=(*collected.batches, *self._batches), topology=topology)

    async def close(self) -> None:
        """Closes the probes."""
        await self._probes.close()


def probes_of(probes: Sequence[ProbeSettings], cluster: str, interval: timedelta) -> ProbeScheduler:
    """Returns the scheduler of the configured probes. Raises UsageError if a library is missing."""
    scheduled = [probe_of(options, cluster) for options in probes]
    return ProbeScheduler(scheduled, deadline=interval / 4, spread=interval / 15)


def probe_of(options: ProbeSettings, cluster: str) -> Probe:
    """Returns one probe from valid settings. Raises UsageError if its libraries are missing."""
    request = ProbeRequest(
        name=options.label,
        service=options.entity(cluster),
        every=options.every,
        timeout=options.timeout,
        access=options.access,
        cert_left=timedelta(days=options.cert_days),
    )
    if options.type == "generation":
        return CompletionProbe(request, options.url or "", _completion_request(options))
    if options.type == "http":
        expected = ExpectedResponse(tuple(options.status), _pattern(options.matches), _pattern(options.lacks))
        return HttpProbe(
            request,
            options.url or "",
            method=options.method,
            body=options.body,
            expected=expected,
            follow_redirects=options.follow_redirects,
        )
    if options.type == "tls":
        return TlsProbe(request, options.host or "", options.port)
    if options.type == "dns":
        servers = [NameServer.parse(server) for server in options.name_servers]
        return DnsProbe(request, options.host or "", record=options.record, expect=options.expect, servers=servers)
    parts = urlsplit(options.url or "")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return GrpcHealthProbe(request, host, parts.port or 0, service=options.grpc_service, tls=parts.scheme == "grpcs")


def _completion_request(options: ProbeSettings) -> CompletionRequest:
    return CompletionRequest(
        model=options.model,
        prompt=options.prompt,
        max_tokens=options.max_tokens,
        api=options.api,
        ttft_limit=options.ttft_limit,
        total_limit=options.total_limit,
        idle=options.idle,
        expect=_pattern(options.matches),
        extra=options.extra,
    )


def _pattern(text: str | None) -> re.Pattern[str] | None:
    return None if text is None else re.compile(text)
