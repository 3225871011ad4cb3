"""Settings of the API: plain values, and parts that the API cannot build itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address

from collectors.receive.kpi import KpiLimits
from collectors.receive.routing import ReceiveRule
from outrider.text.i18n import Language
from outrider.vocabulary import indicators
from outrider.vocabulary.rules import Rule
from outrider.vocabulary.slo import Slo
from store.remote.metric_store import Remote
from store.write_buffer.segments import CycleFiles

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def _target(name: str) -> float:
    target = indicators.MEASURES[name].target
    assert target is not None
    return target


@dataclass(frozen=True, slots=True)
class Promise:
    """What a service promises its users; the defaults are those of ``outrider.vocabulary.indicators``.

    ``broken_below_ratio`` is the success ratio under which the promise counts as broken, ``ttft_p99_seconds``
    the limit of the 99th percentile, ``ttft_seconds`` the limit that SLA attainment counts requests against.
    """

    availability_ratio: float = _target("availability")
    success_ratio: float = _target("success")
    broken_below_ratio: float = indicators.SUCCESS_LIMIT_RATIO
    sla_attainment_ratio: float = _target("sla_attainment")
    ttft_seconds: float = indicators.TTFT_LIMIT_SECONDS
    ttft_p99_seconds: float = _target("ttft_p99")


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """How much the doors for pushed samples take, and what becomes of it.

    ``token`` opens these doors and nothing else; empty: only the admin token does. ``samples_per_minute``
    is what one sender may bring of what is kept. ``kpi_services`` have KPIs though nothing else is watched of them.
    """

    token: str = field(default="", repr=False)
    rules: tuple[ReceiveRule, ...] = ()
    body_bytes: int = 16 * 1024 * 1024
    unpacked_bytes: int = 128 * 1024 * 1024
    samples_per_request: int = 500_000
    samples_per_minute: int = 6_000_000
    buffer_bytes: int = 256 * 1024 * 1024
    kpis: KpiLimits = field(default_factory=KpiLimits)
    kpi_services: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Webhooks:
    """How changes are announced: secrets by github and gitlab, and names of services by repository."""

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    services: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Values of the configuration that the API uses.

    ``token`` is the admin token; empty means that every write is refused. ``token_for_reads`` None means:
    reads need the token unless the API listens on loopback. ``hosts`` are the names a browser may call it
    by, a guard against DNS rebinding; ``("*",)`` accepts every name. ``interval`` is the time between cycles.
    ``control_url`` is the door of the simulated fleet that drills break, None when the fleet is real.
    ``doors`` None means that nothing is received. ``spool`` is where the engine's cycles wait for the store.
    ``metrics`` None means that the values are in the store too. ``rules`` are those in force: what a judged alert
    looked at is kept with the verdict.
    """

    token: str = field(default="", repr=False)
    host: str = "127.0.0.1"
    port: int = 8600
    token_for_reads: bool | None = None
    hosts: tuple[str, ...] = LOOPBACK_NAMES
    interval: timedelta = timedelta(seconds=15)
    language: Language = "en"
    cluster: str = "default"
    store_url: str = "sqlite:///.outrider/outrider.db"
    spool: CycleFiles | None = None
    metrics: Remote | None = None
    promise: Promise = Promise()
    control_url: str | None = None
    doors: IngestSettings | None = None
    webhooks: Webhooks = Webhooks()
    slos: tuple[Slo, ...] = ()
    external_scaler_port: int | None = None
    rules: tuple[Rule, ...] = ()

    @property
    def reads_need_token(self) -> bool:
        """True when a read without the token is refused."""
        if self.token_for_reads is not None:
            return self.token_for_reads
        return not is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """True for names and addresses that only this machine reaches."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
