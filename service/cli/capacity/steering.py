"""``outrider capacity what-if steer``: replica weights as route documents and dry-run traffic actions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from outrider.clock import SystemClock
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from outrider.text.i18n import translate
from service.cli.capacity.buy import USUAL_LOAD, calibrated
from service.cli.capacity.weight_options import Arriving, Prefill, Tokens, Watermark
from service.cli.core.common import NO, Context, duration_of, leaf


def add(app: typer.Typer, *, hidden: bool = False) -> None:
    """Registers the command."""
    leaf(
        app,
        "steer",
        example="outrider capacity what-if steer --service chat --current route.yaml --documents new.yaml",
        hidden=hidden,
    )(steer)


def steer(
    context: Context,
    service: Annotated[str | None, typer.Option("--service", help="Service of the store, for example chat.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="JSON file with replicas, instead of the store.")] = None,
    current: Annotated[
        Path | None, typer.Option("--current", help="Current route (kubectl get -o yaml) whose weights change.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="Format of a new route: gateway (HTTPRoute) or istio (VirtualService)."),
    ] = None,
    stands: Annotated[str, typer.Option("--stands", help="Time the weights stay in effect. Default: 5m.")] = "5m",
    arriving: Arriving = None,
    tokens: Tokens = 250.0,
    watermark: Watermark = 0.9,
    prefill: Prefill = 0.0,
    least: Annotated[int | None, typer.Option("--least", help="Minimum weight per backend (0-100).")] = None,
    most: Annotated[int | None, typer.Option("--most", help="Maximum weight per backend (0-100).")] = None,
    refill: Annotated[
        list[str] | None,
        typer.Option(
            "--refill",
            help="Backend to bring back from weight 0. Repeatable; other backends at 0 stay drained.",
        ),
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option("--gateway", help="Gateway of a new route, as name or namespace/name. Default: the mesh."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Host name of requests to the gateway. Default: all hosts of the gateway."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", help="Port of the replicas, for a new route.", min=1, max=65535)
    ] = 8000,
    pod_label: Annotated[
        str | None, typer.Option("--pod-label", help="Pod label that identifies each pod, for a new route.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--documents", help="File to write the Kubernetes documents to.")] = None,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Set the weights through the performer of balance_traffic; a dry run without --yes."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Execute --apply, unless remediation.dry_run is set. Default: a dry run.")
    ] = False,
) -> int | None:
    """Propose replica weights for a gateway or a service mesh.

    Exits 1 if there is no better proposal.
    """
    from planner.traffic import routes  # noqa: PLC0415 - numpy, not needed by --help
    from planner.traffic.weight_changes import SteeringRules  # noqa: PLC0415
    from service.capacity import steering  # noqa: PLC0415
    from service.config import input_files  # noqa: PLC0415

    if yes and not apply:
        raise UsageError("--yes requires --apply", hint="add --apply, or omit --yes")
    if form not in (None, "gateway", "istio"):
        raise UsageError(f"--format {form!r} is not known", hint="give gateway or istio")
    route = None if current is None else steering.route_of(current)
    if route is not None and form is not None:
        raise UsageError("--format and --current exclude each other", hint="an existing route keeps its own format")
    now = None if route is None else routes.current_weights(route, str(current))
    rules = SteeringRules(duration_of("--stands", stands).total_seconds(), watermark, prefill, tokens, least, most,
                  tuple(refill or ()))  # fmt: skip
    fleet = _fleet(context, service, file, arriving)
    proposal = steering.propose(fleet, rules, now)
    documents: list[Any] = []
    if proposal.steering.proposed and route is not None:
        documents = [routes.set_weights(route, proposal.steering.weights, str(current))]
    elif proposal.steering.proposed:
        location = routes.RouteLocation(
            fleet.service.name,
            fleet.service.namespace or "default",
            fleet.pods,
            port,
            pod_label or routes.POD_LABEL,
            gateway,
            tuple(host or ()),
        )
        weights = {replica.name: proposal.steering.weights[name] for name, replica in proposal.replica_of.items()}
        documents = list(routes.documents("istio" if form == "istio" else "gateway", location, weights))
    if out is not None and documents:
        input_files.write(out, yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True))
    shown = {
        "service": fleet.service.name,
        "namespace": fleet.service.namespace,
        **proposal.steering.as_dict(),
        "current_source": "even" if route is None else "route",
        "unrouted": list(proposal.unrouted),
        "stands_seconds": rules.stands_seconds,
        "dry_run": True,
        "actions": steering.actions(proposal, SystemClock().now()),
        "documents": documents,
        "written": str(out) if out is not None and documents else None,
        "applied": _applied(context, proposal, fleet, by_backend=route is not None, yes=yes) if apply else None,
    }
    context.show(shown, lambda answer: _lines(context, answer))
    return None if proposal.steering.proposed else NO


def _applied(context: Context, proposal: Any, fleet: Any, *, by_backend: bool, yes: bool) -> dict[str, Any] | None:
    """Performs a proposal; None without one."""
    from service.capacity import balancing  # noqa: PLC0415 - slow to import, not needed by --help
    from service.wiring import stores as wiring_stores  # noqa: PLC0415

    if not proposal.steering.proposed:
        return None
    settings, now = context.settings(), SystemClock().now()
    dry_run = not yes or settings.remediation.dry_run
    action = balancing.action(proposal, fleet, now, by_backend=by_backend, dry_run=dry_run)
    with wiring_stores.stores(settings) as (state, _):
        return balancing.perform(settings, state, action, now)


def _fleet(context: Context, service: str | None, file: Path | None, arriving: float | None) -> Any:
    from dataclasses import replace  # noqa: PLC0415

    from service.capacity import steering  # noqa: PLC0415
    from service.wiring import stores as wiring_stores  # noqa: PLC0415

    settings = context.settings()
    if file is not None:
        configured = next((setting for setting in settings.services if setting.name == service), None)
        entity = EntityRef(settings.cluster, EntityKind.SERVICE, "default", service or file.stem)
        return steering.of_file(
            file, entity if configured is None else configured.entity(settings.cluster), arriving, USUAL_LOAD
        )
    with wiring_stores.stores(settings) as (state, metrics):
        entity, calibrations, _ = calibrated(settings, state, metrics, service)
        fleet = steering.of_store(metrics, state.topology(), entity, calibrations)
    return fleet if arriving is None else replace(fleet, arriving=arriving)


def _lines(context: Context, shown: dict[str, Any]) -> str:
    def line(key: str, **numbers: Any) -> str:
        return translate(f"capacity.steer_{key}", context.language, **numbers)

    marks = {name: line(mark) for mark in ("kept", "drained", "closed") for name in shown[mark]}
    rates = {name: f"{shown[f'{name}_tokens_per_second']:g}" for name in ("arriving", "speed")}
    lines = [line("set" if shown["applied"] else shown["reason"], **shown["bounds"], **rates)]
    for name, weight in shown["weights"].items():
        wait = shown["waits_seconds"].get(name)
        numbers = {"before": shown["current"][name], "weight": weight, "mark": marks.get(name, "")}
        if wait is None:
            lines.append(line("line_unknown", replica=name, **numbers))
        else:
            lines.append(line("line", replica=name, **numbers, wait=f"{wait:.2f}"))
    waits = [shown[f"p95_wait_{name}seconds"] for name in ("even_", "current_", "")]
    if waits[2] is not None:
        even, before, after = ("" if wait is None else f"{wait:.2f}" for wait in waits)
        key = "gain" if before else "gain_new"
        lines.append(line(key, even=even, before=before, after=after, stands=f"{shown['stands_seconds']:g}"))
    if shown["unrouted"]:
        lines.append(line("unrouted", replicas=", ".join(shown["unrouted"])))
    if shown["applied"]:
        lines.append(f"{shown['applied']['status']}: {shown['applied']['detail']}")
    if shown["documents"]:
        names = ", ".join(f"{document['kind']} {document['metadata']['name']}" for document in shown["documents"])
        lines.append(line("documents", names=names, where=shown["written"] or "-o json, --documents"))
    return "\n".join(lines)
