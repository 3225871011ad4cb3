"""The configuration: one YAML file, checked to the line, handed down as values.

Every field says what it is, in which unit, and why its default is what it is. ``${NAME}`` in a text is
replaced from the environment; a key that ends in ``_file`` names a file whose content is the secret.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, field_validator

from outrider.errors import ConfigError, ConfigProblem
from outrider.model import ActionKind
from outrider.text import yaml_file
from outrider.vocabulary.faults import faults as vocabulary
from outrider.vocabulary.slo import Slo
from service.config import knowledge_overlay
from service.config.collect_settings import CollectSettings
from service.config.detect_settings import DetectSettings
from service.config.discovery_settings import discover_usable
from service.config.event_settings import EventSettings, events_usable
from service.config.explainer_settings import ExplainerSettings
from service.config.gpu_settings import GpuOfferSettings, types_doubted
from service.config.planner_settings import PlannerSettings
from service.config.probe_settings import ProbeSettings, probes_usable
from service.config.receive_settings import ReceiveSettings, receive_usable
from service.config.retention_settings import RetentionSettings, retention_usable
from service.config.scaling_settings import emit_usable
from service.config.service_settings import ServiceSettings, services_usable
from service.config.settings_base import Duration, Port, Ratio, Section, TimeZone
from service.config.settings_targets import adapters_usable, doubts, targets_apart
from service.config.slo_settings import SloSettings, slos_usable
from service.config.store_settings import RemoteMetricsSettings

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
DEFAULT_FILE = Path("outrider.yaml")


class SpoolSettings(Section):
    """Where cycles wait while the store is away, has a full disk or is damaged."""

    folder: Path | None = Field(
        None, description="default: spool beside the store; better another disk than the store's own"
    )
    limit_bytes: Annotated[int, Field(ge=1_000_000)] = Field(
        1 << 30, description="the oldest cycles are given up beyond it; 10 min of 2,000 targets take about 40 MB"
    )


class StoreSettings(Section):
    """Where values and decisions are kept."""

    url: str = Field(
        "sqlite:///.outrider/outrider.db",
        description="sqlite:///path/to/file.db (metrics go to a second file beside it) or postgresql://user@host/database",
    )
    spool: SpoolSettings = Field(SpoolSettings(), description="cycles that wait while the store is away")
    retention: RetentionSettings = Field(RetentionSettings(), description="how long values are kept")
    stand_by: bool = Field(
        True,
        description="on PostgreSQL a second engine waits until the first one ends; false: it refuses, as on SQLite",
    )
    metrics: RemoteMetricsSettings | None = Field(
        None, description="a server that keeps the values instead, for fleets that outgrow one machine"
    )


class ChannelSettings(BaseModel):
    """One way to reach people; further keys belong to the type and are checked by its sender."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal["webhook", "slack", "dingtalk", "email"] = Field(description="which sender")
    language: Literal["en", "zh"] | None = Field(None, description="of this channel; that of notify when not given")


class NotifySettings(Section):
    """Who is told what."""

    language: Literal["en", "zh"] = Field("en", description="of messages and reports")
    channels: dict[str, ChannelSettings] = Field({}, description="name -> sender with its keys")
    groups: dict[Literal["phone", "sms", "im", "mail", "report"], list[str]] = Field(
        {}, description="route of a rule -> names of channels"
    )
    public_url: str = Field("http://127.0.0.1:8501", description="where the links of messages lead")


class RulesSettings(Section):
    """Alert rules beside the packaged ones."""

    files: list[Path] = Field([], description="rule files that add to, override or disable the packaged rules")


class KnowledgeSettings(Section):
    """What is known of faults beside what is packaged."""

    folder: Path | None = Field(
        None, description="folder of *.yaml files that change what is known of faults; read at the start"
    )


class RemediationSettings(Section):
    """What Outrider may do by itself."""

    autonomy: Literal["off", "suggest", "act"] = Field("suggest", description="act performs what the guard rails allow")
    dry_run: bool = Field(True, description="say what would be done, change nothing")
    actuator: Literal["dry_run", "simulated", "autoscalers"] = Field(
        "dry_run", description="what performs actions; autoscalers: scales by planner.scaling.emit, and nothing else"
    )
    control_url: str | None = Field(None, description="door of the simulated fleet")
    max_cordoned_nodes: Annotated[int, Field(ge=0)] = Field(
        2, description="breaker: nodes out at once, absolute; one is always possible"
    )
    max_cordoned_ratio: Ratio = Field(0.2, description="breaker: nodes out at once, share of all")
    max_actions_per_hour: Annotated[int, Field(ge=0)] = Field(20, description="breaker: actions in one hour")
    cooldown: Duration = Field(timedelta(minutes=10), description="time before the same action on the same target")
    min_confidence: Ratio = Field(0.6, description="a cause less sure than this is asked about, not acted on")
    ask_for: list[ActionKind] = Field([], description="kinds that always wait for a person")


class GameDaySettings(Section):
    """A drill on a schedule, on a simulated fleet. Messages of its incidents say that it is a drill."""

    name: str = Field(description="what messages call it", min_length=1)
    cluster: str | None = Field(None, description="the cluster to break; the first one when not given")
    faults: list[str] = Field(description="fault ids; one is drawn each time", min_length=1)
    day: Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"] = Field("tue", description="day of the week")
    hour: Annotated[int, Field(ge=0, le=23)] = Field(10, description="hour at which the window opens")
    minute: Annotated[int, Field(ge=0, le=59)] = Field(0, description="minute at which the window opens")
    timezone: TimeZone = Field("UTC", description="of day and hour, such as Asia/Shanghai")
    window: Duration = Field(timedelta(hours=1), description="the fault begins and ends inside it")
    lasts: Duration = Field(
        timedelta(minutes=12), description="how long the fault is at work; the window less two minutes at most"
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="draws the fault, its moment and its entity")

    @field_validator("faults")
    @classmethod
    def _known_faults(cls, value: list[str]) -> list[str]:
        for fault in value:
            if fault not in vocabulary():
                raise ValueError(f"unknown fault {fault!r}{yaml_file.near(fault, vocabulary())}")
        return value


class ChangeSettings(Section):
    """Changes that others announce by POST /api/v1/changes."""

    github_secret_file: Path | None = Field(
        None, description="secret of GitHub's webhook; a request it signs needs no token"
    )
    gitlab_secret_file: Path | None = Field(
        None, description="secret token of GitLab's webhook; a request that bears it needs no token"
    )
    services: dict[str, str] = Field(
        {},
        description="repository, project or Argo CD application -> service it is about; its own name when not given",
    )


class ApiSettings(Section):
    """The HTTP API."""

    host: str = Field("127.0.0.1", description="loopback unless a proxy authenticates in front of it")
    port: Port = Field(8600, description="TCP port")
    hosts: list[str] = Field([], description="names a browser may call it by, beside loopback; needed off loopback")
    token_file: Path | None = Field(None, description="admin token; generated beside the store when not given")


class DashboardSettings(Section):
    """The dashboard."""

    enabled: bool = Field(default=True, description="serve starts it")
    host: str = Field("127.0.0.1", description="loopback unless a proxy authenticates in front of it")
    port: Port = Field(8501, description="TCP port")


class LogSettings(Section):
    """Diagnostic logs, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe line shown")


class Settings(Section):
    """The whole file. No key is required."""

    cluster: str = Field(
        "default", description="name of the cluster, part of every entity", min_length=1, pattern=r"^[^/]+$"
    )
    store: StoreSettings = Field(StoreSettings(), description="the databases")
    collect: CollectSettings = Field(CollectSettings(), description="what is watched")
    events: list[EventSettings] = Field([], description="where events are read, beside what pages tell")
    receive: ReceiveSettings = Field(ReceiveSettings(), description="what others push")
    probes: list[ProbeSettings] = Field([], description="doors of services, asked as a client would ask")
    services: list[ServiceSettings] = Field([], description="planning facts of model services")
    detect: DetectSettings = Field(DetectSettings(), description="how much statistical detection alarms")
    slos: list[SloSettings] = Field([], description="what services promise, with error budgets")
    planner: PlannerSettings = Field(PlannerSettings(), description="how many GPUs, and when")
    gpus: list[GpuOfferSettings] = Field(
        [], description="GPUs that can be had, for capacity cost; priors when not given"
    )
    rules: RulesSettings = Field(RulesSettings(), description="alert rules")
    knowledge: KnowledgeSettings = Field(KnowledgeSettings(), description="what is known of faults")
    notify: NotifySettings = Field(NotifySettings(), description="who is told")
    remediation: RemediationSettings = Field(RemediationSettings(), description="what may be done")
    game_days: list[GameDaySettings] = Field([], description="drills on a schedule")
    changes: ChangeSettings = Field(ChangeSettings(), description="changes that pipelines announce")
    explainer: ExplainerSettings = Field(ExplainerSettings(), description="a model that retells incidents")
    api: ApiSettings = Field(ApiSettings(), description="the HTTP API")
    dashboard: DashboardSettings = Field(DashboardSettings(), description="the dashboard")
    log: LogSettings = Field(LogSettings(), description="diagnostic logs")

    @property
    def promises(self) -> tuple[Slo, ...]:
        """The SLOs as detectors, rules and the API take them."""
        return tuple(one.slo(self.cluster) for one in self.slos)


def find(option: Path | None) -> Path | None:
    """``--config``, else ``$OUTRIDER_CONFIG``, else ``./outrider.yaml`` when it is there, else None."""
    if option is not None:
        return option
    named = os.environ.get("OUTRIDER_CONFIG")
    if named:
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def load(path: Path | None, *, fleet: str | None = None) -> Settings:
    """Read a configuration; None gives the defaults.

    ``fleet`` is the cluster of a simulated fleet that the caller brings along for the file's game days.
    Raises ConfigError with every fault in line order.
    """
    if path is None:
        return Settings()
    found, problems, _ = review(path, fleet=fleet)
    if problems or found is None:
        raise yaml_file.refuse(problems)
    return found


def review(path: Path, *, fleet: str | None = None) -> tuple[Settings | None, list[ConfigProblem], list[ConfigProblem]]:
    """A configuration, all that is wrong with it at once, and what can be used and is hardly meant.

    Raises ConfigError for a file that is no YAML mapping.
    """
    document = yaml_file.read(path)
    problems: list[ConfigProblem] = []
    value = _substitute(document.value if document.value is not None else {}, (), document, problems)
    if not isinstance(value, dict):
        raise yaml_file.refuse([document.problem((), "expected a mapping of sections such as collect: and notify:")])
    settings = None
    try:
        settings = Settings.model_validate(value)
    except pydantic.ValidationError as error:
        problems += yaml_file.problems_of(error, document, Settings)
        wrong = {str(detail["loc"][0]) for detail in error.errors()}
        # what hangs together is looked at in the sections that can be read
        problems += _consistency(Settings.model_validate({k: v for k, v in value.items() if k not in wrong}), document)
    problems += adapters_usable(value, document, path.parent)
    problems += targets_apart(value, document)
    if settings is not None:
        problems += _consistency(settings, document)
        problems += _game_days_usable(settings, document, fleet)
    return settings, problems, [*doubts(value, document), *types_doubted(value, document)]


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
            problems.append(document.problem(path, f"the environment has no variable {name}"))
        return os.environ.get(name, match.group(0))

    return _VARIABLE.sub(replace, value)


def _consistency(settings: Settings, document: yaml_file.Document) -> list[ConfigProblem]:
    problems = list(retention_usable(settings.store.retention, document))
    problems += events_usable(settings.events, document)
    problems += receive_usable(settings.receive, document)
    problems += discover_usable(settings.collect.discover, document)
    if settings.collect.discover and settings.collect.prometheus is not None:
        said = "is for scraping; the targets of collect.prometheus are those that it scrapes"
        problems.append(document.problem(("collect", "discover"), said))
    problems += probes_usable(settings.probes, document)
    problems += slos_usable(settings.slos, document)
    problems += knowledge_overlay.folder_usable(settings.knowledge.folder, document)
    for group, names in settings.notify.groups.items():
        for index, name in enumerate(names):
            if name not in settings.notify.channels:
                known = yaml_file.near(name, settings.notify.channels) or "; name it under notify.channels"
                problems.append(
                    document.problem(("notify", "groups", group, index), f"no channel is named {name!r}{known}")
                )
    problems += services_usable(settings.services, document)
    named = [service.name for service in settings.services]
    problems += emit_usable(settings.planner.scaling, named, settings.remediation.actuator, document)
    if settings.explainer.url is not None and not settings.explainer.model:
        problems.append(document.problem(("explainer", "model"), "is needed by an explainer with an address"))
    if settings.remediation.actuator == "simulated" and not settings.remediation.control_url:
        problems.append(document.problem(("remediation", "control_url"), "is needed by the simulated actuator"))
    return problems


def _game_days_usable(settings: Settings, document: yaml_file.Document, fleet: str | None) -> list[ConfigProblem]:
    """Game days need a simulated fleet, a cluster of it, and a window that fits into the week."""
    found = []
    watched = {settings.cluster, *(target.entity.cluster or settings.cluster for target in settings.collect.targets)}
    clusters = watched if fleet is None else {fleet}
    for index, day in enumerate(settings.game_days):
        where = ("game_days", index)
        if fleet is None and settings.remediation.actuator != "simulated":
            message = "needs a simulated fleet; set remediation.actuator: simulated and its control_url"
            found.append(document.problem(where, message))
        if day.cluster is not None and day.cluster not in clusters:
            known = yaml_file.near(day.cluster, clusters) or f"; known: {', '.join(sorted(clusters))}"
            found.append(document.problem((*where, "cluster"), f"no cluster is named {day.cluster!r}{known}"))
        if not timedelta(minutes=2) < day.window < timedelta(days=7):
            message = "does not fit; expected more than 2m and less than 7d"
            found.append(document.problem((*where, "window"), message))
    return found


def read_secret(path: Path) -> str:
    """The content of a secret file, without the line end. Raises ConfigError naming the file."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"the secret file {path} cannot be read: {error.strerror}") from error
