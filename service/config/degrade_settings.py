"""Degrade ladder and cluster switch: what each service may give up, and which cluster takes over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from outrider.errors import ConfigError, ConfigProblem
from outrider.text import yaml_file
from remediation.procedures import cluster_switch, degrade_ladder, files
from remediation.procedures.cluster_switch import ClusterSwitch
from remediation.procedures.degrade_ladder import Ladder, Ladders, ServiceOptions
from service.config.settings_base import Duration, Section

RequestClassName = Literal["vip", "standard", "offline"]
LevelName = Literal["limit_prompts", "pause_offline", "defer_low_priority", "cap_output", "smaller_model", "vip_only"]


class DegradeServiceSettings(Section):
    """What one service may give up under a load above its capacity."""

    enabled: bool = Field(default=True, description="Degrade this service at all.")
    classes: list[RequestClassName] = Field(
        [],
        description="Request classes that clients mark; only marked classes are rejected or deferred.",
        examples=["[vip, standard, offline]"],
    )
    pause: list[str] = Field(
        [],
        description="Deployments of offline work in the service's namespace, scaled to zero at pause_offline.",
        examples=["[embeddings-batch]"],
    )
    fallback_model: str | None = Field(
        None, description="Smaller or quantised model for the level smaller_model. Default: none.", examples=["chat-8b"]
    )
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Lower limit of every prompt limit of the ladder, in tokens. Default: none.",
        examples=["8000"],
    )
    max_output_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Lower limit of every output cap of the ladder, in tokens. Default: none.", examples=["256"]
    )
    wait_objective: Duration | None = Field(
        None,
        description=(
            "TTFT against which the queue is measured. Default: the shortest limit of the service's TTFT SLOs, else "
            "that of the ladder."
        ),
        examples=["2s"],
    )
    levels: list[LevelName] | None = Field(
        None, description="Levels that this service may take. Default: all.", examples=["[pause_offline, cap_output]"]
    )

    def options(self, startup: timedelta, objective: timedelta | None = None) -> ServiceOptions:
        """Returns the options of the service; ``startup`` is its start-up time, ``objective`` the TTFT of its SLO."""
        return ServiceOptions(
            enabled=self.enabled,
            classes=frozenset(self.classes),
            pause=tuple(self.pause),
            fallback_model=self.fallback_model,
            max_prompt_tokens=self.max_prompt_tokens,
            max_output_tokens=self.max_output_tokens,
            wait_objective=self.wait_objective or objective,
            levels=None if self.levels is None else frozenset(self.levels),
            startup=startup,
        )


class DegradeSettings(Section):
    """Degrade ladder: levels that shed load until ordered replicas serve."""

    enabled: bool = Field(default=True, description="Degrade services whose load scaling cannot cover in time.")
    file: Path | None = Field(
        None,
        description="YAML file with an own ladder. Default: the packaged one.",
        examples=["/etc/outrider/ladder.yaml"],
    )
    services: dict[str, DegradeServiceSettings] = Field(
        {}, description="Map from a service name to its options.", examples=["{chat: {classes: [vip, standard]}}"]
    )
    webhook: str | None = Field(
        None,
        description="URL of the gateway that gets each change of level as a POST. Default: none.",
        examples=["https://gateway.example/degrade"],
    )
    webhook_secret_file: Path | None = Field(
        None,
        description="File with the secret that signs the webhook (HMAC-SHA256). Default: unsigned.",
        examples=["/run/secrets/degrade"],
    )
    config_map: bool = Field(
        default=True,
        description="Write the level to the ConfigMap outrider-degrade-SERVICE in the service's namespace.",
    )

    @property
    def needs_api_server(self) -> bool:
        """True if a level changes objects of Kubernetes, not only the gateway behind the webhook."""
        return self.config_map or any(options.pause for options in self.services.values())

    def ladders(
        self, startups: Mapping[str, timedelta], objectives: Mapping[str | None, timedelta] | None = None
    ) -> Ladders:
        """Returns the ladders. Raises ConfigError for an invalid file.

        ``startups`` and the TTFT ``objectives`` are by service; the objective of None applies to every other service.
        """
        if not self.enabled:
            return Ladders()
        limits = objectives or {}
        common, plain = limits.get(None), DegradeServiceSettings()
        names = {*startups, *self.services, *filter(None, limits)}
        services = {
            name: self.services.get(name, plain).options(startups.get(name, _STARTUP), limits.get(name, common))
            for name in sorted(names)
        }
        return Ladders(_ladder(self.file), plain.options(_STARTUP, common), services)


class ClusterSwitchSettings(Section):
    """Switch of a lost cluster's services to a standby cluster."""

    enabled: bool = Field(default=True, description="Switch, or request approval for it, when a cluster is lost.")
    standby: dict[str, str] = Field(
        {},
        description="Map from a cluster to its standby. Default: the only other cluster that has the same service.",
        examples=["{eu-1: us-1}"],
    )
    file: Path | None = Field(
        None,
        description="YAML file with own times and shares. Default: the packaged one.",
        examples=["/etc/outrider/switch.yaml"],
    )

    def procedure(self) -> ClusterSwitch | None:
        """Returns the procedure, None if it is disabled. Raises ConfigError for an invalid file."""
        if not self.enabled:
            return None
        if self.file is None:
            return replace(files.switch(), standby=dict(self.standby))
        return cluster_switch.read(yaml_file.read(self.file), self.standby)


_STARTUP = ServiceOptions().startup


def _ladder(file: Path | None) -> Ladder:
    return files.ladder() if file is None else degrade_ladder.read(yaml_file.read(file))


def degrade_problems(
    degrade: DegradeSettings, switch: ClusterSwitchSettings, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """Checks the files of both procedures, and that secrets have a webhook."""
    if degrade.webhook_secret_file is not None and degrade.webhook is None:
        path = ("remediation", "degrade", "webhook_secret_file")
        yield document.problem(path, "is only used with remediation.degrade.webhook")
    for section, key in ((degrade, "degrade"), (switch, "cluster_switch")):
        try:
            section.ladders({}) if isinstance(section, DegradeSettings) else section.procedure()
        except ConfigError as error:
            yield from error.problems or (document.problem(("remediation", key, "file"), error.message),)
    for cluster, standby in switch.standby.items():
        if cluster == standby:
            key_path = ("remediation", "cluster_switch", "standby", cluster)
            yield document.problem(key_path, "a cluster cannot be its own standby")
