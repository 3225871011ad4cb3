"""Remediation: autonomy, limits, maintenance windows, approvals, performers of actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import Field

from outrider.errors import ConfigError, ConfigProblem
from outrider.model import ActionKind
from outrider.text import yaml_file
from outrider.vocabulary.faults import faults
from remediation.decide.autonomy import PLAN, Autonomy, AutonomyLevels, Environment
from remediation.decide.limits import DISRUPTIVE, BreakerLimits, HalfOpen, Policy
from remediation.decide.time_windows import TimeWindow
from remediation.playbooks import files as playbook_files
from service.config.actuator_settings import (
    EngineActuatorSettings,
    GslbSettings,
    HookKind,
    HookSettings,
    actuator_problems,
)
from service.config.degrade_settings import ClusterSwitchSettings, DegradeSettings
from service.config.scaling_settings import KubernetesApiSettings
from service.config.settings_base import Duration, Ratio, Section
from service.config.time_span_settings import TimeSpanSettings
from service.config.traffic_settings import TrafficSettings

DefaultActuatorName = Literal["dry_run", "simulated", "autoscalers", "kubernetes"]
ActuatorName = Literal[DefaultActuatorName, "degrade", "engine", "gslb", "hook", "traffic"]
# Performers beside ``actuator: kubernetes`` of the kinds that it cannot perform.
BESIDE_KUBERNETES: dict[ActionKind, ActuatorName] = {
    ActionKind.DEGRADE_SERVICE: "degrade",
    ActionKind.RESTORE_SERVICE: "degrade",
    ActionKind.SHIFT_TRAFFIC: "traffic",
    ActionKind.RESTORE_TRAFFIC: "traffic",
    ActionKind.BALANCE_TRAFFIC: "traffic",
    ActionKind.WAKE_ENGINE: "engine",
    ActionKind.SLEEP_ENGINE: "engine",
    ActionKind.DRAIN_ENGINE: "engine",
    ActionKind.RESUME_ENGINE: "engine",
    ActionKind.RESET_PREFIX_CACHE: "engine",
}
_ON_CLUSTERS = ("kubernetes", "autoscalers")  # they are joined by configured hooks and gslb
Level = Literal["observe", "recommend", "approve", "act"]
_LIMITS = BreakerLimits()
_HALF_OPEN = HalfOpen()
_POLICY = Policy()


class TimeWindowSettings(TimeSpanSettings):
    """A span of time of services and environments."""

    services: list[str] = Field(
        [], description="Services, as name or namespace/name. Default: all.", examples=["[chat, llm/code]"]
    )
    environments: list[str] = Field([], description="Environments. Default: all.", examples=["[prod]"])

    def window(self) -> TimeWindow:
        """Returns the span with its time zone."""
        zone = ZoneInfo(self.timezone)
        return TimeWindow(self.name, zone, self.span(), frozenset(self.services), frozenset(self.environments))


class EnvironmentSettings(Section):
    """An environment: an entity belongs to it by its cluster or by its namespace."""

    clusters: list[str] = Field([], description="Clusters; * matches any characters.", examples=["[eu-1]"])
    namespaces: list[str] = Field([], description="Namespaces; * matches any characters.", examples=['["prod-*"]'])


class AutonomySettings(Section):
    """Levels of autonomy of single playbooks, services and environments. The strictest level that names one applies."""

    playbooks: dict[str, Level] = Field(
        {},
        description="Map from the fault of a playbook to its level; plan: scaling by the capacity plan.",
        examples=["{engine-hung: act, plan: recommend}"],
    )
    services: dict[str, Level] = Field(
        {}, description="Map from a service, as name or namespace/name, to its level.", examples=["{chat: act}"]
    )
    environments: dict[str, Level] = Field(
        {}, description="Map from an environment to its level.", examples=["{prod: approve}"]
    )


class BreakerSettings(Section):
    """Breaker: stops remediation that does not help, until a person resets it. Undo always passes."""

    window: Duration = Field(_LIMITS.window, description="Time in which actions are counted.")
    max_unsuccessful: Annotated[int, Field(ge=0)] = Field(
        _LIMITS.max_unsuccessful, description="Maximum number of actions that failed, or whose target did not recover."
    )
    max_unsuccessful_ratio: Ratio = Field(
        _LIMITS.max_unsuccessful_ratio,
        description="Maximum share of such actions; the breaker opens if both are exceeded.",
    )
    recovers_within: Duration = Field(
        _LIMITS.recovers_within, description="Time that a target has to recover after an action."
    )


class HalfOpenSettings(Section):
    """Return of a replica into rotation: a part of its share first. A failure at a part takes it out again."""

    weights: list[Ratio] = Field(
        list(_HALF_OPEN.weights), description="Parts of its share before all of it; empty: all of it at once."
    )
    time: Duration = Field(_HALF_OPEN.time, description="Time at each part without an alert.")
    hold: Duration = Field(
        _HALF_OPEN.hold, description="Time out of rotation before the first trial of a replica that nobody repaired."
    )


class ServiceMinimumSettings(Section):
    """Minimum number of serving replicas, whatever is broken."""

    default: Annotated[int, Field(ge=0)] = Field(
        _POLICY.service_minimum, description="Minimum of every service that services does not name."
    )
    services: dict[str, Annotated[int, Field(ge=0)]] = Field(
        {}, description="Map from a service, as name or namespace/name, to its minimum.", examples=["{chat: 4}"]
    )


class RemediationSettings(Section):
    """Remediation: autonomy, limits and performers of actions."""

    autonomy: Level = Field(
        "approve",
        description=(
            "Level unless autonomy_for names another one. observe: only undoes earlier actions; recommend: records "
            "proposals; approve: waits for approval; act: performs what the guard rails allow."
        ),
    )
    autonomy_for: AutonomySettings = Field(
        AutonomySettings(), description="Levels of playbooks, services and environments."
    )
    environments: dict[str, EnvironmentSettings] = Field(
        {},
        description="Map from the name of an environment to its clusters and namespaces.",
        examples=['{prod: {namespaces: ["prod-*"]}}'],
    )
    maintenance_windows: list[TimeWindowSettings] = Field(
        [],
        description="A service with a window here is disrupted only within one of them.",
        examples=['[{name: nightly, timezone: Asia/Shanghai, start: "01:00", end: "05:00"}]'],
    )
    freezes: list[TimeWindowSettings] = Field(
        [],
        description="Times in which Outrider only undoes earlier actions.",
        examples=['[{name: holidays, timezone: Europe/Berlin, start: "2026-12-24 12:00", end: "2027-01-02 06:00"}]'],
    )
    disruptive: list[ActionKind] = Field(
        sorted(DISRUPTIVE), description="Action kinds that wait for a maintenance window."
    )
    dry_run: bool = Field(True, description="Report actions without performing them.")
    fast_path: bool = Field(
        True, description="Decide about unambiguous hard faults as soon as they are read, before the cycle."
    )
    kill_switch_file: Path | None = Field(
        None,
        description="While this file exists or cannot be checked, nothing is sent to a cluster, not even undo.",
        examples=["/etc/outrider/stop"],
    )
    playbooks: list[Path] = Field(
        [],
        description="Playbook files that override the packaged ones by fault.",
        examples=["[/etc/outrider/playbooks.yaml]"],
    )
    actuator: DefaultActuatorName = Field(
        "dry_run", description="Performer of actions, unless actuators names another one."
    )
    actuators: dict[ActionKind, ActuatorName] = Field(
        {},
        description=(
            "Map from an action kind to its performer; autoscalers: scales through planner.scaling.emit; "
            "kubernetes: nodes, pods and workloads; traffic: routes and selectors, by remediation.traffic; "
            "engine: endpoints of inference engines; hook: remediation.hooks; gslb: remediation.gslb; "
            "degrade: degrade levels, by remediation.degrade. With actuator kubernetes, traffic, engine and degrade "
            "perform their kinds by default; with kubernetes or autoscalers, also configured hooks and gslb."
        ),
        examples=["{scale: autoscalers, drain: kubernetes}"],
    )
    kubernetes: KubernetesApiSettings = Field(
        KubernetesApiSettings(), description="API server of the performers kubernetes and traffic."
    )
    traffic: TrafficSettings = Field(TrafficSettings(), description="Routing techniques of the performer traffic.")
    engine: EngineActuatorSettings = Field(EngineActuatorSettings(), description="Endpoints of inference engines.")
    hooks: dict[HookKind, HookSettings] = Field(
        {},
        description="Map from reset_gpu, reboot_node or run_diagnostic to its hook.",
        examples=['{reboot_node: {webhook: {url: "https://bmc.example/reboot"}}}'],
    )
    gslb: GslbSettings | None = Field(None, description="Request that switches traffic between clusters.")
    control_url: str | None = Field(
        None, description="Control endpoint of the simulated fleet.", examples=["http://127.0.0.1:9400"]
    )
    max_cordoned_nodes: Annotated[int, Field(ge=0)] = Field(
        2, description="Maximum nodes out of service at once; 0: none."
    )
    max_cordoned_ratio: Ratio = Field(
        0.2, description="Maximum share of nodes out of service at once; one is always allowed, unless it is 0."
    )
    max_actions_per_hour: Annotated[int, Field(ge=0)] = Field(20, description="Maximum actions per hour.")
    cooldown: Duration = Field(timedelta(minutes=10), description="Minimum time between two equal actions on a target.")
    service_minimum: ServiceMinimumSettings = Field(
        ServiceMinimumSettings(), description="Serving replicas that no action goes below."
    )
    scale_in_cooldown: Duration = Field(
        _POLICY.scale_in_cooldown, description="Minimum time between two scale-ins of a service."
    )
    scale_in_step_ratio: Ratio = Field(
        _POLICY.scale_in_step_ratio,
        description="Maximum share of the replicas that one scale-in removes, at least one.",
    )
    min_confidence: Ratio = Field(0.6, description="Minimum confidence of a cause; below it actions need approval.")
    ask_for: list[ActionKind] = Field(
        [], description="Action kinds that always need approval.", examples=["[rollback]"]
    )
    two_person: list[ActionKind] = Field(
        [], description="Action kinds that need the approval of two people.", examples=["[drain, reboot_node]"]
    )
    approval_expires: Duration = Field(
        timedelta(minutes=30), description="Time after which a request for approval expires."
    )
    half_open: HalfOpenSettings = Field(HalfOpenSettings(), description="Return of replicas into rotation.")
    max_ejected_ratio: Ratio = Field(
        0.5, description="Maximum share of the serving replicas of a service out of rotation; one is always allowed."
    )
    diagnostic_timeout: Duration = Field(
        timedelta(minutes=30),
        description=(
            "Maximum duration of the diagnostic of a node; then a person is paged. Nodes with a hardware fault need "
            "one if run_diagnostic has a hook that performs it, or an entry in actuators."
        ),
    )
    breaker: BreakerSettings = Field(BreakerSettings(), description="Breaker for remediation that does not help.")

    degrade: DegradeSettings = Field(DegradeSettings(), description="Degrade ladder.")
    cluster_switch: ClusterSwitchSettings = Field(
        ClusterSwitchSettings(), description="Switch of a lost cluster's services to a standby."
    )

    def performer(self, kind: ActionKind) -> ActuatorName:
        """Returns the performer of an action kind."""
        return self.actuators.get(kind) or self._default_performer(kind)

    def _default_performer(self, kind: ActionKind) -> ActuatorName:
        if self.actuator not in _ON_CLUSTERS:
            return self.actuator
        if kind in self.hooks:
            return "hook"
        if kind is ActionKind.SWITCH_CLUSTER and self.gslb is not None:
            return "gslb"
        return BESIDE_KUBERNETES.get(kind, self.actuator) if self.actuator == "kubernetes" else self.actuator

    @property
    def runs_diagnostics(self) -> bool:
        """True if a performer of diagnostics is configured: a node with a hardware fault then needs one."""
        kind = ActionKind.RUN_DIAGNOSTIC
        return kind in self.actuators or self.performer(kind) == "hook"

    def levels(self) -> AutonomyLevels:
        """Returns the levels of autonomy."""
        named = self.autonomy_for
        return AutonomyLevels(
            Autonomy(self.autonomy), _levels(named.playbooks), _levels(named.services), _levels(named.environments)
        )

    def named_environments(self) -> dict[str, Environment]:
        """Returns the environments by name."""
        return {
            name: Environment(tuple(environment.clusters), tuple(environment.namespaces))
            for name, environment in self.environments.items()
        }


def remediation_problems(settings: RemediationSettings, document: yaml_file.Document) -> list[ConfigProblem]:
    """Checks names across the section, and the playbook files."""
    problems = list(_unknown_names(settings, document))
    if "simulated" in {settings.actuator, *settings.actuators.values()} and not settings.control_url:
        problems.append(document.problem(("remediation", "control_url"), "is required by the simulated actuator"))
    problems += actuator_problems(settings.engine, settings.hooks, settings.gslb, settings.actuators, document)
    return [*problems, *_playbook_problems(settings.playbooks, document)]


def _playbook_problems(files: Sequence[Path], document: yaml_file.Document) -> list[ConfigProblem]:
    """A file that cannot be read has the line that names it; each other mistake has its own file and line."""
    readable, problems = yaml_file.readable(files, document, ("remediation", "playbooks"))
    try:
        playbook_files.load(readable)
    except ConfigError as error:
        problems += error.problems
    return problems


def _unknown_names(settings: RemediationSettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    known = (*faults(), PLAN)
    for fault in settings.autonomy_for.playbooks:
        if fault not in known:
            where = ("remediation", "autonomy_for", "playbooks", fault)
            yield document.problem(where, f"unknown fault{yaml_file.near(fault, known)}")
    named: list[tuple[yaml_file.Path_, Iterable[str]]] = [
        (("autonomy_for", "environments"), settings.autonomy_for.environments)
    ]
    for key, windows in (("maintenance_windows", settings.maintenance_windows), ("freezes", settings.freezes)):
        named += [((key, index, "environments"), window.environments) for index, window in enumerate(windows)]
    for path, names in named:
        for name in names:
            if name not in settings.environments:
                hint = yaml_file.near(name, settings.environments) or "; name it under remediation.environments"
                yield document.problem(("remediation", *path, name), f"no environment is named {name!r}{hint}")


def _levels(named: dict[str, Level]) -> dict[str, Autonomy]:
    return {name: Autonomy(level) for name, level in named.items()}
