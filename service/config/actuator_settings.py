"""Performers outside the Kubernetes API: engines, hooks and the switch between clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from outrider.errors import ConfigError, ConfigProblem, UsageError
from outrider.model import ActionKind
from outrider.text import yaml_file
from remediation.actuators.engine import endpoints
from remediation.actuators.engine.actuator import template_problem
from remediation.actuators.gslb.request_template import problem as placeholder_problem
from remediation.actuators.hook import actuator as hook_actuator
from remediation.actuators.hook.diagnostic import PEER_RATIO
from remediation.actuators.hook.job_manifest import PackagedCheck, template_problems
from service.config.access_settings import AccessSettings
from service.config.settings_base import Duration, NameServers, Ratio, Section

_TIMEOUT = timedelta(seconds=10)
HookKind = Literal[ActionKind.RESET_GPU, ActionKind.REBOOT_NODE, ActionKind.RUN_DIAGNOSTIC]


class EngineActuatorSettings(AccessSettings):
    """Control endpoints of inference engines, for the performer engine."""

    url: str = Field(
        "",
        description=(
            "Base URL of the engine of a replica. Placeholders: name, "
            "namespace, host, cluster. Without host and cluster it serves the configured cluster only. Default: the "
            "address of its metrics page."
        ),
        examples=["http://{name}.{namespace}:8000"],
    )
    timeout: Duration = Field(_TIMEOUT, description="Deadline of a request; a drain is requested again after it.")


class JobHookSettings(Section):
    """A Kubernetes Job on the node."""

    template: Path | None = Field(
        None,
        description="File with a Job manifest. Default: the packaged one of the kind.",
        examples=["/etc/outrider/reset-job.yaml"],
    )
    image: str = Field(
        "",
        description="Image of the containers; required by a packaged manifest.",
        examples=["registry.example/dcgm:4.2"],
    )
    namespace: str = Field("outrider", description="Namespace of the Job, where the account may create Jobs.")
    check: PackagedCheck = Field(
        "dcgm",
        description=(
            "run_diagnostic without template: dcgmi diag, nvidia-smi -q, nvbandwidth against the other nodes, or a "
            "short completion on the node's engines."
        ),
    )
    level: Literal[1, 2] = Field(1, description="Level of dcgmi diag: 1 takes seconds, 2 about two minutes.")
    runtime_class: str = Field("nvidia", description="runtimeClassName of the pod, if the template has none.")
    limits: dict[str, str] = Field(
        {},
        description="Resource limits of the containers.",
        examples=['{nvidia.com/gpu: "8"}'],
    )
    deadline: Duration = Field(timedelta(minutes=15), description="activeDeadlineSeconds, if the template has none.")
    keeps: Duration = Field(
        timedelta(hours=24), description="ttlSecondsAfterFinished; reports of other nodes are compared for this time."
    )
    peer_ratio: Ratio = Field(
        PEER_RATIO, description="A rate below this share of the median of two or more other nodes fails."
    )


class WebhookHookSettings(AccessSettings):
    """A signed webhook."""

    url: str = Field(description="URL that accepts the POST.", min_length=1, examples=["https://bmc.example/reboot"])
    secret_file: Path | None = Field(
        None, description="File with the secret of the HMAC-SHA256 signature.", examples=["/run/secrets/hook"]
    )
    timeout: Duration = Field(_TIMEOUT, description="Deadline of a request.")


class NvsentinelHookSettings(Section):
    """A custom resource of NVSentinel."""

    force: bool = Field(False, description="spec.force of a RebootNode.")


class HookSettings(Section):
    """A hook: exactly one of job, webhook and nvsentinel."""

    job: JobHookSettings | None = Field(None, description="Kubernetes Job.")
    webhook: WebhookHookSettings | None = Field(None, description="Signed webhook.")
    nvsentinel: NvsentinelHookSettings | None = Field(None, description="NVSentinel custom resource.")
    timeout: Duration = Field(
        timedelta(minutes=20), description="Time after which an action without an end has failed."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> HookSettings:
        configured = [name for name in ("job", "webhook", "nvsentinel") if getattr(self, name) is not None]
        if len(configured) != 1:
            raise ValueError(f"expected exactly one of job, webhook and nvsentinel, not {len(configured)}")
        return self


class GslbReadSettings(Section):
    """Reads the share back from the provider's API."""

    url: str = Field(
        description="URL of the GET; placeholders as in remediation.gslb.url.",
        min_length=1,
        examples=["https://dns.example/pools/{service}"],
    )
    share: str = Field(
        description="Dotted path of the number in the JSON; placeholders as in remediation.gslb.url.",
        min_length=1,
        examples=["weights.{cluster}"],
    )
    whole: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Number that stands for all traffic, for example 100."
    )


class GslbDnsSettings(Section):
    """Reads the addresses back from DNS."""

    name: str = Field(description="Name to resolve.", min_length=1, examples=["chat.example"])
    addresses: dict[str, list[str]] = Field(
        description="Addresses of the name by cluster.", min_length=1, examples=["{eu-1: [10.0.0.1], us-1: [10.1.0.1]}"]
    )
    servers: NameServers = Field([], description="DNS servers. Default: those of the system.", examples=["[10.0.0.10]"])


class GslbSettings(AccessSettings):
    """Request that switches traffic between clusters, for the performer gslb."""

    url: str = Field(
        description="URL; placeholders: id, service, namespace, cluster, share (0-1), percent (0-100).",
        min_length=1,
        examples=["https://dns.example/pools/{service}"],
    )
    method: Literal["POST", "PUT", "PATCH"] = Field("POST", description="Request method.")
    body: dict[str, Any] = Field(
        {},
        description="JSON body, with the same placeholders in its texts.",
        examples=['{cluster: "{cluster}", weight: "{percent}"}'],
    )
    names: dict[str, str] = Field(
        {}, description="Map from a cluster to the provider's name of it.", examples=["{eu-1: pool-a}"]
    )
    read: GslbReadSettings | None = Field(None, description="Verification by the provider's API.")
    dns: GslbDnsSettings | None = Field(None, description="Verification by DNS.")
    timeout: Duration = Field(_TIMEOUT, description="Deadline of a request.")

    @model_validator(mode="after")
    def _one_verification(self) -> GslbSettings:
        if self.read is not None and self.dns is not None:
            raise ValueError("expected read or dns, not both")
        return self


def actuator_problems(
    engine: EngineActuatorSettings,
    hooks: Mapping[Any, HookSettings],
    gslb: GslbSettings | None,
    performers: Mapping[ActionKind, str],
    document: yaml_file.Document,
) -> Iterator[ConfigProblem]:
    """Checks templates, and that every named performer is configured. ``performers`` are those named by kind."""
    path: yaml_file.Path_ = ("remediation",)
    if engine.url and (text := template_problem(engine.url)):
        yield document.problem((*path, "engine", "url"), text)
    for kind, hook in hooks.items():
        yield from _hook_problems(kind, hook, (*path, "hooks", kind.value), document)
    if gslb is not None:
        yield from _gslb_problems(gslb, (*path, "gslb"), document)
    for kind, performer in performers.items():
        where = (*path, "actuators", kind.value)
        if kind not in KINDS_OF.get(performer, (kind,)):
            known = ", ".join(sorted(each.value for each in KINDS_OF[performer]))
            yield document.problem(where, f"{performer} does not perform {kind.value}; it performs {known}")
        elif performer == "hook" and kind not in hooks:
            yield document.problem(where, f"hook requires remediation.hooks.{kind.value}")
        elif performer == "gslb" and gslb is None:
            yield document.problem(where, "gslb requires remediation.gslb")


KINDS_OF: Mapping[str, frozenset[ActionKind]] = {
    "engine": endpoints.KINDS,
    "hook": hook_actuator.KINDS,
    "gslb": frozenset({ActionKind.SWITCH_CLUSTER}),
}


def _hook_problems(
    kind: ActionKind, hook: HookSettings, path: yaml_file.Path_, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    if hook.nvsentinel is not None and kind is ActionKind.RUN_DIAGNOSTIC:
        yield document.problem((*path, "nvsentinel"), "NVSentinel runs no diagnostics; expected job or webhook")
    if hook.webhook is not None and not _is_url(hook.webhook.url):
        yield document.problem((*path, "webhook", "url"), "expected an http or https URL")
    if hook.job is None:
        return
    where = (*path, "job")
    if hook.job.template is None:
        if not hook.job.image:
            yield document.problem((*where, "image"), "is required without a template")
        return
    try:
        template = yaml_file.read(hook.job.template)
    except ConfigError as error:
        yield from error.problems or (document.problem((*where, "template"), error.message),)
        return
    except UsageError as error:
        yield document.problem((*where, "template"), error.message)
        return
    for key, message in template_problems(template):
        if key[-1] != "image" or not hook.job.image:
            yield template.problem(key, message)


def _gslb_problems(gslb: GslbSettings, path: yaml_file.Path_, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    if not _is_url(gslb.url):
        yield document.problem((*path, "url"), "expected an http or https URL")
    templates: dict[tuple[str, ...], Any] = {("url",): gslb.url, ("body",): gslb.body}
    if gslb.read is not None:
        templates |= {("read", "url"): gslb.read.url, ("read", "share"): gslb.read.share}
    for key, template in templates.items():
        if text := placeholder_problem(template):
            yield document.problem((*path, *key), text)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)
