"""Settings of the API: plain values, and parts that the API cannot build itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from collectors.receive.alert_formats.json_mapping import JsonMapping
from collectors.receive.alert_formats.record import AlertRules
from collectors.receive.kpi import KpiLimits
from collectors.receive.routing import ReceiveRule
from outrider.records.heartbeats import Watchdog
from outrider.records.silences import Silence
from outrider.text.i18n import Language
from outrider.vocabulary import indicators
from outrider.vocabulary.rules import Rule
from outrider.vocabulary.slo import Slo
from service.config.oncall_settings import OnCallSettings
from service.config.settings_base import LOOPBACK_NAMES, is_loopback
from store.remote.metric_store import Remote
from store.write_buffer.segments import CycleFiles


def _target(name: str) -> float:
    target = indicators.MEASURES[name].target
    assert target is not None
    return target


@dataclass(frozen=True, slots=True)
class SloDefaults:
    """Default SLOs of a service; the values come from ``outrider.vocabulary.indicators``.

    ``violated_below_ratio`` is the success ratio below which the SLO is violated, ``ttft_p99_seconds`` the limit of the
    99th percentile, ``ttft_seconds`` the limit of SLA attainment.
    """

    availability_ratio: float = _target("availability")
    success_ratio: float = _target("success")
    violated_below_ratio: float = indicators.SUCCESS_LIMIT_RATIO
    sla_attainment_ratio: float = _target("sla_attainment")
    ttft_seconds: float = indicators.TTFT_LIMIT_SECONDS
    ttft_p99_seconds: float = _target("ttft_p99")


@dataclass(frozen=True, slots=True)
class AlertIngestSettings:
    """Limits, decoding and HMAC secrets of received alerts. ``mappings`` and ``secrets`` are by source.

    An alert that one of ``watchdogs`` selects is its heartbeat, and no alert.
    """

    rules: AlertRules = field(default_factory=AlertRules)
    mappings: Mapping[str, JsonMapping] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    watchdogs: tuple[Watchdog, ...] = ()
    per_minute: int = 60_000
    most_firing: int = 20_000
    body_bytes: int = 8 * 1024 * 1024

    def of_origin(self, origin: str) -> AlertIngestSettings:
        """The settings of the installation whose alerts have this origin: they are recognized if they come back."""
        return replace(self, rules=replace(self.rules, origin=origin))


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """Limits and routing of the ingest endpoints.

    ``token`` is valid for these endpoints only; empty: the admin token is required. ``samples_per_minute`` limits the
    samples of one sender that are kept. ``kpi_services`` have KPIs but no other metrics.
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
    alerts: AlertIngestSettings = AlertIngestSettings()


@dataclass(frozen=True, slots=True)
class Webhooks:
    """Announced changes: webhook secrets of GitHub and GitLab, and service names by repository."""

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    services: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Configuration values of the API.

    ``token`` is the admin token; empty means that every write is refused. ``token_for_reads`` None: reads require the
    token unless the API listens on loopback. ``hosts`` are the accepted host names, a guard against DNS rebinding;
    ``("*",)`` accepts every name. ``interval`` is the time between cycles. ``control_url`` is the control endpoint of
    the simulated fleet, None for a real one. ``ingest`` None disables ingestion. ``spool`` is the folder of buffered
    cycles. ``metrics`` None means that the values are in the store too. ``rules`` are the active rules: the values that
    a judged alert evaluated are stored with the verdict. ``autonomy``, ``dry_run`` and ``kill_switch_file``
    are those of remediation, ``maintenance`` the silences of the configuration, for display. ``public_url`` is that of
    the API, ``dashboard_url`` that of the dashboard, as people reach them. ``button_key`` empty: no button
    acts.
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
    slo_defaults: SloDefaults = SloDefaults()
    control_url: str | None = None
    ingest: IngestSettings | None = None
    webhooks: Webhooks = Webhooks()
    slos: tuple[Slo, ...] = ()
    external_scaler_port: int | None = None
    rules: tuple[Rule, ...] = ()
    autonomy: str = "approve"
    dry_run: bool = True
    kill_switch_file: Path | None = None
    oncall: OnCallSettings = field(default_factory=OnCallSettings)
    public_url: str | None = None
    dashboard_url: str = ""
    button_key: str = field(default="", repr=False)
    maintenance: tuple[Silence, ...] = ()

    @property
    def reads_need_token(self) -> bool:
        """True if a read without the token is refused."""
        if self.token_for_reads is not None:
            return self.token_for_reads
        return not is_loopback(self.host)
