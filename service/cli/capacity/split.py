"""``outrider capacity what-if split`` and ``spares``: long-prompt pools and redundancy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef, Recommendation
from outrider.text.i18n import translate
from outrider.text.unknown_names import no_such
from service.cli.core.amounts import amount
from service.cli.core.common import NO, Context, duration_of, leaf


def add(app: typer.Typer, *, hidden: bool = False) -> None:
    """Registers the commands."""
    example = "outrider capacity what-if split --service chat --long-ratio 0.3 -o json"
    leaf(app, "split", example=example, hidden=hidden)(split)
    example = "outrider capacity what-if spares --needed 12 --domains 4 --losses 1"
    leaf(app, "spares", example=example, hidden=hidden)(spares)


def split(
    context: Context,
    long_ratio: Annotated[float, amount("--long-ratio", "ratio", "Share of all capacity reserved for long prompts")],
    service: Annotated[
        str | None, typer.Option("--service", help="Service of the store; uses its histogram of prompt lengths.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="File with one length per line, or a CSV file with --column.")
    ] = None,
    column: Annotated[str, typer.Option("--column", help="CSV column with the prompt tokens.")] = "prompt_tokens",
    span: Annotated[str, typer.Option("--span", help="Span of the store to read.")] = "24h",
) -> int | None:
    """Compute the prompt length above which requests get replicas of their own.

    Exits 1 if no prompt lengths are known.
    """
    from planner.traffic import weights  # noqa: PLC0415 - numpy, not needed by --help
    from service.capacity import prompts as known  # noqa: PLC0415

    if (service is None) == (prompts is None):
        raise UsageError("no prompt lengths given", hint="give --service, or --prompts FILE")
    if prompts is not None:
        lengths, counts = known.of_file(prompts, column)
        source = str(prompts)
    else:
        source = f"{service}, {span}"
        lengths, counts = _of_store(context, str(service), duration_of("--span", span))
    result_split = weights.split(lengths, long_ratio, counts)
    fields = None if result_split is None else result_split.as_dict()
    empty = dict.fromkeys(("split_tokens", "requests", "long_requests_ratio", "long_tokens_ratio"))
    result = {**empty, **(fields or {}), "long_ratio": long_ratio, "source": source}
    result["reason"] = "no_prompts" if result_split is None else None
    context.show(result, lambda shown: _split_line(context, shown))
    return NO if result_split is None else None


def _of_store(context: Context, service: str, span: Any) -> Any:
    from service.capacity import prompts  # noqa: PLC0415
    from service.wiring import stores as wiring_stores  # noqa: PLC0415

    with wiring_stores.stores(context.settings()) as (state, metrics):
        newest, topology = state.cycles(limit=1), state.topology()
        entity = _service(topology.of_kind(EntityKind.SERVICE), service)
        now = newest[0].at if newest else topology.at
        return prompts.of_store(metrics, topology.below(entity, EntityKind.REPLICA), now, span)


def _split_line(context: Context, shown: dict[str, Any]) -> str:
    if shown["split_tokens"] is None:
        return translate("capacity.split_none", context.language, source=shown["source"])
    return translate(
        "capacity.split",
        context.language,
        tokens=f"{shown['split_tokens']:,.0f}",
        requests=f"{shown['long_requests_ratio']:.1%}",
        work=f"{shown['long_tokens_ratio']:.1%}",
        capacity=f"{shown['long_ratio']:.1%}",
        count=f"{shown['requests']:,.0f}",
        source=shown["source"],
    )


def spares(
    context: Context,
    needed: Annotated[int | None, typer.Option("--needed", help="Replicas that the load needs.", min=0)] = None,
    service: Annotated[
        str | None, typer.Option("--service", help="Service whose newest plan gives the number of replicas.")
    ] = None,
    losses: Annotated[
        int, typer.Option("--losses", help="Failure domains that may be lost at the same time.", min=0)
    ] = 1,
    domains: Annotated[int | None, typer.Option("--domains", help="Number of failure domains.", min=1)] = None,
    domain: Annotated[
        str,
        typer.Option("--domain", help="Failure domain with --service: node, or a node label (zone, nvlink_domain)."),
    ] = "node",
    gpus_per_replica: Annotated[
        int | None, typer.Option("--gpus-per-replica", help="GPUs of one replica (TP x PP).", min=1)
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(
            "--gpus-per-node", help="GPUs per node, to count whole nodes. Default with --service: as planned.", min=1
        ),
    ] = None,
) -> None:
    """Compute spare replicas and whole nodes so that the load survives lost nodes, racks or zones."""
    from planner.capacity import redundancy  # noqa: PLC0415

    if (needed is None) == (service is None):
        raise UsageError("number of replicas not given", hint="give --needed, or --service to use its plan")
    uncapped = 0
    if service is not None:
        needed, known_domains, group, size, uncapped = _planned(context, service, domain)
        domains, gpus_per_replica = domains or known_domains, gpus_per_replica or group
        gpus_per_node = gpus_per_node or (size if gpus_per_replica else None)
    if domains is None:
        raise UsageError(
            "number of failure domains not given", hint="give --domains: the number of nodes, racks or zones"
        )
    spares_needed = redundancy.with_spares(int(needed or 0), domains=domains, losses=losses)
    nodes = None
    if gpus_per_node is not None:
        if gpus_per_replica is None:
            raise UsageError("--gpus-per-node needs --gpus-per-replica", hint="give TP x PP of a replica")
        nodes = redundancy.whole_nodes(
            spares_needed.replicas, gpus_per_replica=gpus_per_replica, gpus_per_node=gpus_per_node
        )
    lines = [spares_needed.line(context.language)] + ([] if nodes is None else [nodes.line(context.language)])
    if uncapped > spares_needed.needed:
        fields = {"service": service, "wanted": str(uncapped), "needed": str(spares_needed.needed)}
        lines.append(translate("capacity.spares_capped", context.language, **fields))
    result = {"service": service, **spares_needed.as_dict(), "nodes": None if nodes is None else nodes.as_dict()}
    context.show({**result, "derivation": lines}, lambda shown: "\n".join(shown["derivation"]))


def _planned(context: Context, service: str, domain: str) -> tuple[int, int | None, int | None, int | None, int]:
    """Target of the newest plan, failure domains, GPUs per replica and per node, and replicas needed."""
    from service.cli.capacity.newest_plan import newest_plan  # noqa: PLC0415
    from service.wiring import stores as wiring_stores  # noqa: PLC0415

    plan = newest_plan(context.settings())
    with wiring_stores.state_reader(context.settings()) as state:
        topology = state.topology()
    entity = _service([item.service for item in plan.recommendations], service)
    item = next(candidate for candidate in plan.recommendations if candidate.service == entity)
    if not isinstance(item, Recommendation):
        raise UsageError(f"{service} has no plan: {item.reason.value}", hint="give --needed")
    nodes = topology.below(entity, EntityKind.NODE)
    failure_domains = {node.name if domain == "node" else topology.label(node, domain) for node in nodes} - {""}
    if nodes and not failure_domains:
        raise UsageError(f"no node of {service} has the label {domain!r}", hint="give --domains, or --domain node")
    group = item.gpus // item.target_replicas if item.target_replicas else None
    needs = [item.derivation.get(name) or 0 for name in ("need_now", "need_forecast")]
    size = (item.derivation.get("nodes") or {}).get("gpus_per_node")
    return item.target_replicas, len(failure_domains) or None, group, size, max(needs)


def _service(known: Any, name: str) -> EntityRef:
    matches: list[EntityRef] = [service for service in known if service.name == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        spaces = ", ".join(str(service.namespace) for service in matches)
        raise UsageError(f"{name} is the name of {len(matches)} services", hint=f"namespaces: {spaces}")
    raise no_such("service", name, sorted(service.name for service in known))
