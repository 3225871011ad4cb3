"""``outrider capacity what-if warm``: faster start-ups, phase by phase, with documents."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from outrider.errors import UsageError
from outrider.records.change_log import StartPhase, Startup
from outrider.text.i18n import translate
from planner.manifests import kube_gpus, prepull
from planner.manifests.startup_advice import WarmSettings, phases_of, warm
from service.capacity import gpu_nodes
from service.cli.capacity import applying
from service.cli.core import tables
from service.cli.core.common import Context, leaf
from service.config import input_files
from service.config.service_settings import ServiceSettings
from service.wiring import stores as wiring_stores


def add(app: typer.Typer, *, hidden: bool = False) -> None:
    """Registers the command."""
    leaf(
        app,
        "warm",
        example="outrider capacity what-if warm --service chat --phase pull=140 --documents warm.yaml",
        hidden=hidden,
    )(warming)


def warming(
    context: Context,
    service: Annotated[str, typer.Option("--service", help="Name of the service.")],
    phase: Annotated[
        list[str] | None, typer.Option("--phase", help="PHASE=SECONDS, instead of the measured duration. Repeatable.")
    ] = None,
    image: Annotated[str | None, typer.Option("--image", help="Image of the engine, to pull in advance.")] = None,
    pre_pull: Annotated[
        str | None,
        typer.Option(
            "--pre-pull", help="Pre-pull as job (once; default if nodes are known) or daemonset (nodes added later)."
        ),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", help="Node to pull the image on. Default: nodes with GPUs in the store."),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Number of nodes to pull the image on.", min=0)] = 0,
    pull_secret: Annotated[str | None, typer.Option("--pull-secret", help="Pull secret of a private registry.")] = None,
    tolerate: Annotated[
        list[str] | None,
        typer.Option("--tolerate", help="Key of a node taint to tolerate, in addition to the GPU taint."),
    ] = None,
    node_selector: Annotated[
        list[str] | None,
        typer.Option("--node-selector", help="Node label KEY=VALUE. Default: the labels of the GPU vendor."),
    ] = None,
    gpu_resource: Annotated[
        str | None,
        typer.Option("--gpu-resource", help="GPU resource that pods request. Default: from the service's GPU type."),
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="URL of the service, for warm-up prompts.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model name for the warm-up prompts.")] = None,
    spare: Annotated[
        int, typer.Option("--spare", help="Replicas kept ready by placeholder pods or a warm pool.", min=1)
    ] = 1,
    out: Annotated[Path | None, typer.Option("--documents", help="File to write the Kubernetes documents to.")] = None,
    apply: applying.Apply = False,
    yes: applying.Confirmed = False,
) -> None:
    """Recommend the start-up phase to shorten first, with savings and cost of each remedy."""
    applying.checked(apply=apply, yes=yes)
    if not service.strip():
        raise UsageError("--service is empty", hint="give the name of a service")
    settings = context.settings()
    known = next((setting for setting in settings.services if setting.name == service), ServiceSettings(name=service))
    starts: tuple[Startup, ...] = () if phase else _starts(context, service)
    resource = kube_gpus.resource_of(known.gpu_type) if gpu_resource is None else gpu_resource
    selector = kube_gpus.selector_of(node_selector or [])
    pre_pull_settings = _pre_pull(context, known, image, pre_pull, node or [], nodes, pull_secret, tolerate or [])
    planned = warm(
        WarmSettings(
            service=service,
            namespace=known.namespace or "default",
            image=image,
            url=url,
            model=model,
            gpus=known.tensor_parallel * known.pipeline_parallel,
            gpu_resource=kube_gpus.checked_resource(resource),
            node_selector=selector or None,
            spare=spare,
            price_per_gpu_hour=known.price_per_gpu_hour,
            pre_pull=pre_pull_settings or prepull.TO_COME,
        ),
        _phases(phase) if phase else phases_of(starts),
        starts,
    )
    if out is not None:
        input_files.write(out, yaml.safe_dump_all(planned.documents, sort_keys=False, allow_unicode=True))
    shown = {
        **planned.as_dict(),
        "gpu_resource": resource,
        "node_selector": selector,
        "pre_pull": None
        if pre_pull_settings is None
        else _pre_pull_json(context, pre_pull_settings, str(image), () if selector else kube_gpus.labels_of(resource)),
        "currency": known.currency,
        "written": None if out is None else str(out),
        "applied": applying.apply(context, planned.documents, yes=yes) if apply else [],
    }
    context.show(shown, lambda answer: _warm_table(answer, context))


def _pre_pull(
    context: Context,
    known: ServiceSettings,
    image: str | None,
    kind: str | None,
    named: list[str],
    count: int,
    secret: str | None,
    taints: list[str],
) -> prepull.PrePull | None:
    """Pre-pull settings, None without an image. Raises UsageError for missing or contradictory options."""
    if image is None:
        if kind or named or count or secret or taints:
            raise UsageError("no image given for the pre-pull", hint="give --image, or omit the pre-pull options")
        return None
    if not image.strip() or any(letter.isspace() for letter in image):
        raise UsageError(f"--image {image!r} is not a valid image", hint="for example vllm/vllm-openai:v0.11.0")
    if kind not in (None, "job", "daemonset"):
        raise UsageError(f"--pre-pull {kind!r} is not known", hint="give job or daemonset")
    if named and count:
        raise UsageError("--node and --nodes exclude each other", hint="give node names, or a number of nodes")
    if kind == "daemonset" and (named or count):
        raise UsageError("a DaemonSet selects its nodes itself", hint="omit --node and --nodes, or use job")
    if not named and not count and kind != "daemonset":
        named = list(gpu_nodes.of_store(context.settings(), known.gpu_type))
    checked: prepull.Kind | None = "job" if kind == "job" else "daemonset" if kind == "daemonset" else None
    return prepull.choose(checked, named, count, secret=secret, taints=taints)


def _pre_pull_json(context: Context, pre_pull: prepull.PrePull, image: str, labels: Sequence[str]) -> dict[str, Any]:
    """Choice, reason, and when to choose another; ``labels`` select nodes if none are named."""
    nodes = pre_pull.count or len(pre_pull.nodes)
    reasons = [translate(f"cli.pre_pull_{pre_pull.kind}", context.language, count=nodes)]
    if labels and not pre_pull.nodes:
        reasons.append(translate("cli.pre_pull_labels", context.language, labels=", ".join(labels)))
    if not prepull.pinned(image):
        reasons.append(translate(f"cli.pre_pull_tag_{pre_pull.kind}", context.language))
    return {
        "kind": pre_pull.kind,
        "reason": pre_pull.reason.value,
        "nodes": list(pre_pull.nodes),
        "count": nodes if pre_pull.kind == "job" else None,
        "pinned": prepull.pinned(image),
        "why": " ".join(reasons),
    }


def _starts(context: Context, service: str) -> tuple[Startup, ...]:
    """Start-ups of a service that the store knows."""
    stored = wiring_stores.startups(context.settings(), wiring_stores.STARTS_READ)
    return tuple(start for start in stored if service in (start.service, start.workload))


def _phases(options: list[str]) -> dict[str, float]:
    seconds_by_phase = {}
    for text in options:
        name, _, seconds = text.partition("=")
        try:
            value = float(seconds)
        except ValueError:
            value = -1.0
        if name not in set(StartPhase) or not isfinite(value) or value < 0:
            raise UsageError(
                f"--phase {text!r} is not PHASE=SECONDS",
                hint=f"for example pull=140; phases: {', '.join(StartPhase)}",
            )
        seconds_by_phase[name] = value
    return seconds_by_phase


def _warm_table(shown: dict[str, Any], context: Context) -> str:
    notes = [text for text in ((shown["pre_pull"] or {}).get("why"), shown["written"]) if text]
    notes += applying.lines(context, shown["applied"])
    if not shown["phases"]:
        return "\n".join([translate("cli.warm_unknown", context.language, service=shown["service"]), *notes])
    phases = ", ".join(f"{name} {seconds:g} s" for name, seconds in shown["phases"].items())
    first = translate("cli.warm_first", context.language, phase=shown["attack_first"] or "-", phases=phases)
    rows = [
        [
            remedy["name"],
            f"{remedy['seconds_saved']:g}",
            str(remedy["idle_gpus"]),
            "-" if remedy["idle_cost_per_hour"] is None else f"{remedy['idle_cost_per_hour']:g} {shown['currency']}/h",
            ", ".join(remedy["phases"]),
        ]
        for remedy in shown["remedies"]
    ]
    table = tables.table(
        tables.heads(context.language, "remedy", "saves_seconds", "idle_gpus", "idle_cost", "phases"), rows, empty="-"
    )
    return "\n".join([first, table, *notes])
