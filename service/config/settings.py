"""The configuration: one YAML file, validated with line numbers, passed on as values.

Every field states its meaning, unit and default. ``${NAME}`` in a text is replaced from the environment. A key that
ends in ``_file`` names a file whose content is the secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import pydantic
from pydantic import Field, field_validator

from alerts.rules import files as rule_files
from alerts.rules.parser import unknown_switch
from detectors.rca.fault_catalogue import Knowledge
from detectors.rules.threshold import compile_rules
from outrider.errors import ConfigError, ConfigProblem, UsageError
from outrider.model import ActionKind
from outrider.text import yaml_file
from outrider.vocabulary.faults import faults as vocabulary
from outrider.vocabulary.slo import Slo
from service.config import knowledge_overlay
from service.config.alertmanager_settings import (
    AlertmanagerSettings,
    alertmanager_problems,
    alertmanager_warnings,
)
from service.config.collect_settings import CollectSettings
from service.config.degrade_settings import degrade_problems
from service.config.detect_settings import DetectSettings
from service.config.discovery_settings import discovery_problems
from service.config.drill_settings import DrillSettings
from service.config.event_settings import EventSettings, event_problems
from service.config.explainer_settings import ExplainerSettings
from service.config.gpu_settings import GpuOfferSettings, gpu_type_warnings
from service.config.heartbeat_settings import (
    HeartbeatSettings,
    WatchdogSettings,
    heartbeat_problems,
    watchdog_problems,
)
from service.config.maintenance_settings import (
    MaintenanceCalendarSettings,
    MaintenanceSettings,
    maintenance_calendar_problems,
    maintenance_problems,
)
from service.config.notify_settings import NotifySettings, notify_problems, notify_warnings
from service.config.oncall_settings import OnCallSettings, oncall_problems
from service.config.phone_warnings import PhoneRoutes
from service.config.planner_settings import PlannerSettings
from service.config.probe_settings import ProbeSettings, probe_problems
from service.config.receive_settings import ReceiveSettings, receive_problems
from service.config.remediation_settings import RemediationSettings, remediation_problems
from service.config.remediation_warnings import remediation_warnings
from service.config.retention_settings import RetentionSettings, retention_problems
from service.config.scaling_settings import KubernetesApiSettings, emit_problems
from service.config.secret_files import secret_file_warnings
from service.config.service_names import KnownServices, known_services, unknown_services
from service.config.service_settings import ServiceSettings, service_problems
from service.config.settings_base import Duration, Port, Section, TimeZone, WebUrl
from service.config.settings_targets import adapter_problems, duplicate_targets, target_warnings
from service.config.slo_settings import SloSettings, slo_problems
from service.config.store_settings import RemoteMetricsSettings
from service.config.traffic_settings import traffic_problems

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
DEFAULT_FILE = Path("outrider.yaml")


class SpoolSettings(Section):
    """Write buffer: cycles on disk while the store is unavailable, full or damaged."""

    folder: Path | None = Field(
        None, description="Folder. Default: spool next to the store; a separate disk is better."
    )
    limit_bytes: Annotated[int, Field(ge=1_000_000)] = Field(
        1 << 30,
        description=(
            "Maximum size; beyond it the oldest cycles are dropped. 10 min of 2,000 targets need about 40 MB."
        ),
    )


class StoreSettings(Section):
    """Databases of values and decisions."""

    url: str = Field(
        "sqlite:///.outrider/outrider.db",
        description=(
            "sqlite:///path/to/file.db (metrics use a second file next to it) or postgresql://user@host/database."
        ),
    )
    spool: SpoolSettings = Field(SpoolSettings(), description="Write buffer for an unavailable store.")
    retention: RetentionSettings = Field(RetentionSettings(), description="Retention of values.")
    stand_by: bool = Field(
        True,
        description="On PostgreSQL a second engine waits until the first one ends. false: it refuses, as on SQLite.",
    )
    metrics: RemoteMetricsSettings | None = Field(
        None, description="Remote server for values, for fleets that outgrow one machine."
    )


class RulesSettings(Section):
    """Alert rules in addition to the packaged ones."""

    files: list[Path] = Field([], description="Rule files that add to, override or disable the packaged rules.")
    enable: list[str] = Field(
        [], description="Rules that are off by default, and packs of them, to switch on, for example thresholds."
    )
    flaps_per_hour: Annotated[int, Field(ge=0)] = Field(
        4, description="An alert that fires more often is held as one firing alert with its count. 0: never."
    )


class KnowledgeSettings(Section):
    """Fault knowledge in addition to the packaged catalog."""

    folder: Path | None = Field(
        None, description="Folder of *.yaml files that customize the fault catalog; read at start."
    )
    runbooks_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Base URL to which the path of a runbook, such as docs/runbooks/gpu-lost.md, is appended. Default: "
        "messages and pages show the path.",
        examples=["https://git.example.org/ops/outrider/blob/main"],
    )

    def catalog(self) -> Knowledge:
        """Returns the fault catalog of this site. Raises ConfigError."""
        return knowledge_overlay.of(self.folder, self.runbooks_url)


class GameDaySettings(Section):
    """A scheduled drill on a simulated fleet. Messages of its incidents are marked as a drill."""

    name: str = Field(description="Name in messages.", min_length=1)
    cluster: str | None = Field(None, description="Cluster to inject into. Default: the first one.")
    faults: list[str] = Field(description="Fault ids; one is drawn each time.", min_length=1)
    day: Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"] = Field("tue", description="Day of the week.")
    hour: Annotated[int, Field(ge=0, le=23)] = Field(10, description="Hour at which the window opens.")
    minute: Annotated[int, Field(ge=0, le=59)] = Field(0, description="Minute at which the window opens.")
    timezone: TimeZone = Field("UTC", description="Time zone of day and hour, for example Asia/Shanghai.")
    window: Duration = Field(timedelta(hours=1), description="Window in which the fault begins and ends.")
    lasts: Duration = Field(
        timedelta(minutes=12), description="Duration of the fault; at most the window minus two minutes."
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Seed for the fault, its time and its entity.")

    @field_validator("faults")
    @classmethod
    def _known_faults(cls, value: list[str]) -> list[str]:
        for fault in value:
            if fault not in vocabulary():
                raise ValueError(f"unknown fault {fault!r}{yaml_file.near(fault, vocabulary())}")
        return value


class ChangeSettings(Section):
    """Changes announced through POST /api/v1/changes."""

    github_secret_file: Path | None = Field(
        None, description="File with the secret of the GitHub webhook; signed requests need no token."
    )
    gitlab_secret_file: Path | None = Field(
        None, description="File with the secret token of the GitLab webhook; requests that carry it need no token."
    )
    services: dict[str, str] = Field(
        {},
        description=(
            "Map from repository, project or Argo CD application to its service. Default: the service of the same name."
        ),
    )


class ApiSettings(Section):
    """HTTP API."""

    host: str = Field(
        "127.0.0.1", description="Address to listen on; loopback unless a proxy authenticates in front of it."
    )
    port: Port = Field(8600, description="TCP port.")
    hosts: list[str] = Field(
        [], description=("Host names that browsers may use, in addition to loopback; required off loopback.")
    )
    token_file: Path | None = Field(
        None, description=("File with the admin token. Default: generated next to the store.")
    )
    public_url: WebUrl | None = Field(
        None, description="Base URL of the API as people reach it. Without it messages have no buttons to act."
    )


class DashboardSettings(Section):
    """Dashboard."""

    enabled: bool = Field(default=True, description="Start the dashboard with serve.")
    host: str = Field(
        "127.0.0.1", description="Address to listen on; loopback unless a proxy authenticates in front of it."
    )
    port: Port = Field(8501, description="TCP port.")


class LogSettings(Section):
    """Diagnostic logs, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Minimum severity of log lines.")


class Settings(Section):
    """The whole file. No key is required."""

    cluster: str = Field(
        "default", description="Name of the cluster, part of every entity.", min_length=1, pattern=r"^[^/]+$"
    )
    store: StoreSettings = Field(StoreSettings(), description="Databases.")
    collect: CollectSettings = Field(CollectSettings(), description="Metrics sources.")
    events: list[EventSettings] = Field([], description="Event sources.")
    receive: ReceiveSettings = Field(ReceiveSettings(), description="Ingest endpoints.")
    probes: list[ProbeSettings] = Field([], description="Probes of service endpoints.")
    services: list[ServiceSettings] = Field([], description="Planning facts of model services.")
    detect: DetectSettings = Field(DetectSettings(), description="Alarm budgets of statistical detection.")
    slos: list[SloSettings] = Field([], description="SLOs with error budgets.")
    planner: PlannerSettings = Field(PlannerSettings(), description="Capacity planning.")
    gpus: list[GpuOfferSettings] = Field([], description="GPU offers, for capacity cost. Default: priors.")
    rules: RulesSettings = Field(RulesSettings(), description="Alert rules.")
    knowledge: KnowledgeSettings = Field(KnowledgeSettings(), description="Fault catalog.")
    notify: NotifySettings = Field(NotifySettings(), description="Notification channels and routes.")
    oncall: OnCallSettings = Field(OnCallSettings(), description="On-call duty and escalation.")
    remediation: RemediationSettings = Field(RemediationSettings(), description="Remediation.")
    alertmanager: AlertmanagerSettings = Field(
        AlertmanagerSettings(), description="Alertmanagers that receive our alerts and share silences."
    )
    heartbeat: HeartbeatSettings = Field(HeartbeatSettings(), description="Heartbeats to a dead man's switch.")
    watchdogs: list[WatchdogSettings] = Field([], description="Heartbeats that are expected of other monitors.")
    maintenance: list[MaintenanceSettings] = Field([], description="Windows in which alerts page nobody.")
    maintenance_calendars: list[MaintenanceCalendarSettings] = Field(
        [], description="Calendars whose events are such windows."
    )
    game_days: list[GameDaySettings] = Field([], description="Scheduled drills.")
    drill: DrillSettings = Field(DrillSettings(), description="Drills on a Kubernetes cluster.")
    changes: ChangeSettings = Field(ChangeSettings(), description="Changes announced by pipelines.")
    explainer: ExplainerSettings = Field(ExplainerSettings(), description="Language model for narratives.")
    api: ApiSettings = Field(ApiSettings(), description="HTTP API.")
    dashboard: DashboardSettings = Field(DashboardSettings(), description="Dashboard.")
    log: LogSettings = Field(LogSettings(), description="Diagnostic logs.")

    def cluster_of(self, server: KubernetesApiSettings) -> str:
        """Returns the cluster that an API server belongs to."""
        return server.cluster or self.cluster

    @property
    def zone(self) -> ZoneInfo:
        """Time zone of times of day, weekdays and holidays."""
        return ZoneInfo(self.detect.timezone or self.planner.zone)

    @property
    def resolved_slos(self) -> tuple[Slo, ...]:
        """SLOs for detectors, rules and the API."""
        return tuple(slo.slo(self.cluster) for slo in self.slos)


def find(option: Path | None) -> Path | None:
    """Returns ``--config``, else ``$OUTRIDER_CONFIG``, else ``./outrider.yaml`` if it exists, else None."""
    if option is not None:
        return option
    named = os.environ.get("OUTRIDER_CONFIG")
    if named:
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def load(path: Path | None, *, fleet: str | None = None) -> Settings:
    """Reads a configuration; None gives the defaults.

    ``fleet`` is the cluster of a simulated fleet for the file's game days. Raises ConfigError with every error in line
    order.
    """
    if path is None:
        return Settings()
    settings, problems, _ = review(path, fleet=fleet)
    if problems or settings is None:
        raise yaml_file.refuse(problems)
    return settings


def review(path: Path, *, fleet: str | None = None) -> tuple[Settings | None, list[ConfigProblem], list[ConfigProblem]]:
    """Returns a configuration, its errors and its warnings. Raises ConfigError if the file is not a YAML mapping."""
    document = yaml_file.read(path)
    problems: list[ConfigProblem] = []
    value = _substitute(document.value if document.value is not None else {}, (), document, problems)
    if not isinstance(value, dict):
        raise yaml_file.refuse([document.problem((), "expected a mapping of sections such as collect: and notify:")])
    if value.pop("playbooks", None) is not None:
        message = "belongs in a file of its own, which remediation.playbooks names"
        problems.append(document.problem(("playbooks",), message))
    settings = None
    try:
        settings = Settings.model_validate(value)
    except pydantic.ValidationError as error:
        problems += yaml_file.problems_of(error, document, Settings)
        wrong = {str(detail["loc"][0]) for detail in error.errors()}
        # sections that can be read are also checked against each other
        problems += _consistency_problems(
            Settings.model_validate({k: v for k, v in value.items() if k not in wrong}), document
        )
    problems += adapter_problems(value, document, path.parent)
    problems += duplicate_targets(value, document)
    if settings is not None:
        problems += _consistency_problems(settings, document)
        problems += _game_day_problems(settings, document, fleet)
    warnings = [*target_warnings(value, document), *gpu_type_warnings(value, document)]
    if settings is not None:
        warnings += remediation_warnings(settings.remediation, settings.planner.scaling, document)
        warnings += secret_file_warnings(settings, document)
        warnings += notify_warnings(settings.notify, document)
        warnings += _phone_warnings(settings, document)
        warnings += alertmanager_warnings(settings.alertmanager, settings.notify.channels, document)
        known = _known_services(settings, fleet)
        (problems if known.complete else warnings).extend(unknown_services(settings.remediation, known, document))
    return settings, problems, warnings


def _known_services(settings: Settings, fleet: str | None) -> KnownServices:
    return known_services(
        settings.services,
        settings.collect,
        settings.probes,
        settings.events,
        settings.receive,
        simulated=fleet is not None or settings.remediation.actuator == "simulated",
    )


def _substitute(value: Any, path: yaml_file.Path_, document: yaml_file.Document, problems: list[ConfigProblem]) -> Any:
    if isinstance(value, dict):
        return {key: _substitute(child, (*path, str(key)), document, problems) for key, child in value.items()}
    if isinstance(value, list):
        return [_substitute(child, (*path, index), document, problems) for index, child in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            problems.append(document.problem(path, f"environment variable {name} is not set"))
        return os.environ.get(name, match.group(0))

    return _VARIABLE.sub(replace, value)


def _consistency_problems(settings: Settings, document: yaml_file.Document) -> list[ConfigProblem]:
    problems = list(retention_problems(settings.store.retention, document))
    problems += event_problems(settings.events, document)
    problems += receive_problems(settings.receive, document)
    problems += maintenance_problems(settings.maintenance, document)
    problems += maintenance_calendar_problems(settings.maintenance_calendars, document)
    problems += alertmanager_problems(settings.alertmanager, document)
    problems += heartbeat_problems(settings.heartbeat, document)
    problems += watchdog_problems(settings.watchdogs, document)
    problems += discovery_problems(settings.collect.discover, document)
    if settings.collect.discover and settings.collect.prometheus is not None:
        message = "cannot be combined with collect.prometheus, which brings its own targets"
        problems.append(document.problem(("collect", "discover"), message))
    problems += probe_problems(settings.probes, document)
    problems += slo_problems(settings.slos, document)
    problems += knowledge_overlay.folder_problems(settings.knowledge.folder, document)
    problems += notify_problems(settings.notify, document)
    problems += oncall_problems(settings.oncall, settings.notify.channels, document)
    problems += service_problems(settings.services, document)
    named = [service.name for service in settings.services]
    scales = settings.remediation.performer(ActionKind.SCALE)
    problems += emit_problems(settings.planner.scaling, named, scales, document)
    problems += degrade_problems(settings.remediation.degrade, settings.remediation.cluster_switch, document)
    problems += traffic_problems(settings.remediation.traffic, named, document)
    if settings.explainer.url is not None and not settings.explainer.model:
        problems.append(document.problem(("explainer", "model"), "is required if url is set"))
    problems += remediation_problems(settings.remediation, document)
    problems += _rule_problems(settings.rules, document)
    return problems


def _rule_problems(rules: RulesSettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Checks the operator's rule files, with their expressions, and the names of rules to switch on."""
    readable, problems = yaml_file.readable(rules.files, document, ("rules", "files"))
    yield from problems
    try:
        entries = rule_files.load_entries(readable)
    except ConfigError as error:
        yield from error.problems
        return
    for entry in entries if readable else ():
        try:
            compile_rules([entry.rule])
        except UsageError as error:
            yield entry.problem("expr", error.message.removeprefix(f"rule {entry.rule.name}: "))
    known = [(entry.rule.name, entry.pack) for entry in entries]
    for index, name in enumerate(rules.enable):
        if message := unknown_switch(name, known):
            yield document.problem(("rules", "enable", index), message)


def _phone_warnings(settings: Settings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    routes = PhoneRoutes(settings.notify.channels, settings.notify.groups, settings.oncall.teams)
    try:
        entries = rule_files.load_entries(settings.rules.files, settings.rules.enable)
    except (ConfigError, UsageError):  # a problem of the rules
        entries = ()
    yield from routes.warnings([entry for entry in entries if entry.enabled], settings.slos, document)


def _game_day_problems(settings: Settings, document: yaml_file.Document, fleet: str | None) -> list[ConfigProblem]:
    """Checks that game days have a simulated fleet, a cluster of it, and a window within the week."""
    problems = []
    watched = {settings.cluster, *(target.entity.cluster or settings.cluster for target in settings.collect.targets)}
    clusters = watched if fleet is None else {fleet}
    for index, day in enumerate(settings.game_days):
        path = ("game_days", index)
        if fleet is None and settings.remediation.actuator != "simulated":
            message = "needs a simulated fleet; set remediation.actuator: simulated and its control_url"
            problems.append(document.problem(path, message))
        if day.cluster is not None and day.cluster not in clusters:
            known = yaml_file.near(day.cluster, clusters) or f"; known: {', '.join(sorted(clusters))}"
            problems.append(document.problem((*path, "cluster"), f"no cluster is named {day.cluster!r}{known}"))
        if not timedelta(minutes=2) < day.window < timedelta(days=7):
            message = "is out of range; expected more than 2m and less than 7d"
            problems.append(document.problem((*path, "window"), message))
    return problems


def read_secret(path: Path) -> str:
    """Returns the content of a secret file without the line end. Raises ConfigError with the path."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"the secret file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the secret file {path} is not UTF-8 text", hint="write the secret as text") from error
