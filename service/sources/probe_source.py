"""Probes as a contributor to each round."""

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
from outrider.model import SampleBatch
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

    async def read(self, at: datetime) -> None:
        """Runs the probes that are due."""
        self._batches = await self._probes.collect(at)

    async def add(self, collected: Collected, at: datetime) -> Collected:
        """Adds the values of all probes."""
        del at
        topology = self._overlay.apply(collected.topology, self._probes.labels)
        return replace(collected, batches=(*collected.batches, *self._batches), topology=topology)

    async def close(self) -> None:
        """Closes the probes."""
        await self._probes.close()


def probes_of(given: Sequence[ProbeSettings], cluster: str, interval: timedelta) -> ProbeScheduler:
    """Returns the scheduler of the configured probes. Raises UsageError if a library is missing."""
    probes = [probe_of(settings, cluster) for settings in given]
    return ProbeScheduler(probes, deadline=interval / 4, spread=interval / 15)


def probe_of(given: ProbeSettings, cluster: str) -> Probe:
    """Returns one probe from valid settings. Raises UsageError if its libraries are missing."""
    request = ProbeRequest(
        name=given.label,
        service=given.entity(cluster),
        every=given.every,
        timeout=given.timeout,
        access=given.access,
        cert_left=timedelta(days=given.cert_days),
    )
    if given.type == "generation":
        return CompletionProbe(request, given.url or "", _question(given))
    if given.type == "http":
        expected = ExpectedResponse(tuple(given.status), _pattern(given.matches), _pattern(given.lacks))
        return HttpProbe(
            request,
            given.url or "",
            method=given.method,
            body=given.body,
            expected=expected,
            follow_redirects=given.follow_redirects,
        )
    if given.type == "tls":
        return TlsProbe(request, given.host or "", given.port)
    if given.type == "dns":
        servers = [NameServer.parse(server) for server in given.name_servers]
        return DnsProbe(request, given.host or "", record=given.record, expect=given.expect, servers=servers)
    parts = urlsplit(given.url or "")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return GrpcHealthProbe(request, host, parts.port or 0, service=given.grpc_service, tls=parts.scheme == "grpcs")


def _question(given: ProbeSettings) -> CompletionRequest:
    return CompletionRequest(
        model=given.model,
        prompt=given.prompt,
        max_tokens=given.max_tokens,
        api=given.api,
        ttft_limit=given.ttft_limit,
        total_limit=given.total_limit,
        idle=given.idle,
        expect=_pattern(given.matches),
        extra=given.extra,
    )


def _pattern(text: str | None) -> re.Pattern[str] | None:
    return None if text is None else re.compile(text)
