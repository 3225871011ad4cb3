"""Pages and probes as one source of the cycle."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from collectors.net.dns_client import NameServer
from collectors.probes.base import ProbeRequest
from collectors.probes.completion import CompletionProbe, Question
from collectors.probes.dns import DnsProbe
from collectors.probes.grpc_health import GrpcHealthProbe
from collectors.probes.http import Expected, HttpProbe
from collectors.probes.result import Probe
from collectors.probes.scheduler import ProbeScheduler
from collectors.probes.tls import TlsProbe
from collectors.scrape.target_health import TargetHealth
from outrider.ports import Collected
from outrider.topology import Topology
from service.config.probe_settings import ProbeSettings
from service.config.settings import Settings
from service.engine.cycle import Source


class WithProbes:
    """A source of pages with probes beside it. ``pages`` is the former."""

    def __init__(self, pages: Source, probes: ProbeScheduler) -> None:
        """Both are closed with this one."""
        self.pages = pages
        self._probes = probes
        self._seen: tuple[Topology, Topology] | None = None

    @property
    def health(self) -> list[TargetHealth]:
        """How each target fares, then each probe."""
        return [*self.pages.health, *self._probes.health]

    def topology(self, at: datetime) -> Topology:
        """What the pages tell of the topology, with the services that are probed and who watches them.

        The graph is the same one as long as that of the pages is: whoever caches by it goes on doing so.
        """
        below = self.pages.topology(at)
        if self._seen is None or not below.shares_graph(self._seen[0]):
            more = self._probes.labels()
            labels = {**below.labels, **{entity: {**below.labels.get(entity, {}), **more[entity]} for entity in more}}
            self._seen = below, replace(below, entities=below.entities | more.keys(), labels=labels)
        return replace(self._seen[1], at=at)

    async def collect(self, at: datetime) -> Collected:
        """One round: pages are read and doors are asked at the same time."""
        collected, batches = await asyncio.gather(self.pages.collect(at), self._probes.collect(at))
        labels = self.topology(at).labels
        return replace(collected, batches=(*collected.batches, *batches), labels=labels)

    async def close(self) -> None:
        """Close both."""
        await self._probes.close()
        await self.pages.close()


def with_probes(pages: Source, settings: Settings) -> Source:
    """The source with the probes that a configuration names; itself when it names none.

    Raises UsageError when a probe needs libraries that are not installed.
    """
    if not settings.probes:
        return pages
    return WithProbes(pages, probes_of(settings.probes, settings.cluster, settings.collect.interval))


def probes_of(given: Sequence[ProbeSettings], cluster: str, interval: timedelta) -> ProbeScheduler:
    """Probes side by side, as the rounds of an engine ask them."""
    made = [probe_of(one, cluster) for one in given]
    return ProbeScheduler(made, deadline=interval / 4, spread=interval / 15)


def probe_of(given: ProbeSettings, cluster: str) -> Probe:
    """One probe from its settings, which must be usable. Raises UsageError when its libraries are missing."""
    asked = ProbeRequest(
        name=given.label,
        service=given.entity(cluster),
        every=given.every,
        timeout=given.timeout,
        access=given.access,
        cert_left=timedelta(days=given.cert_days),
    )
    if given.type == "generation":
        return CompletionProbe(asked, given.url or "", _question(given))
    if given.type == "http":
        expected = Expected(tuple(given.status), _pattern(given.matches), _pattern(given.lacks))
        return HttpProbe(
            asked,
            given.url or "",
            method=given.method,
            body=given.body,
            expected=expected,
            follow_redirects=given.follow_redirects,
        )
    if given.type == "tls":
        return TlsProbe(asked, given.host or "", given.port)
    if given.type == "dns":
        servers = [NameServer.parse(one) for one in given.name_servers]
        return DnsProbe(asked, given.host or "", record=given.record, expect=given.expect, servers=servers)
    parts = urlsplit(given.url or "")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return GrpcHealthProbe(asked, host, parts.port or 0, service=given.grpc_service, tls=parts.scheme == "grpcs")


def _question(given: ProbeSettings) -> Question:
    return Question(
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
