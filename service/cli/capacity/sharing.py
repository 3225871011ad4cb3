"""``outrider capacity split|spares``: where long prompts part from short ones, and replicas that may be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef, Recommendation
from outrider.text.i18n import translate
from service.cli.core.amounts import amount
from service.cli.core.common import NO, Context, duration_of, leaf


def add(app: typer.Typer, *, hidden: bool = False) -> None:
    """Put the commands into ``outrider capacity``."""
    leaf(app, "split", example="outrider capacity split --service chat --long-ratio 0.3 -o json", hidden=hidden)(split)
    leaf(app, "spares", example="outrider capacity spares --needed 12 --domains 4 --losses 1", hidden=hidden)(spares)


def split(
    context: Context,
    long_ratio: Annotated[float, amount("--long-ratio", "ratio", "of all capacity, kept for long prompts")],
    service: Annotated[str | None, typer.Option("--service", help="of the store, by its histogram of prompts")] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="file: a length a line, or CSV with --column")
    ] = None,
    column: Annotated[str, typer.Option("--column", help="of the CSV, tokens of a prompt")] = "prompt_tokens",
    span: Annotated[str, typer.Option("--span", help="how far back the store is read")] = "24h",
) -> int | None:
    """Say from which length prompts go to replicas of their own; exit 1 when no prompt is known."""
    from planner.traffic import weights  # noqa: PLC0415 - numpy, which --help does without
    from service.capacity import prompts as known  # noqa: PLC0415

    if (service is None) == (prompts is None):
        raise UsageError("which prompts?", hint="give --service, or --prompts FILE")
    if prompts is not None:
        lengths, counts = known.of_file(prompts, column)
        source = str(prompts)
    else:
        source = f"{service}, {span}"
        lengths, counts = _of_store(context, str(service), duration_of("--span", span))
    found = weights.split(lengths, long_ratio, counts)
    said = None if found is None else found.as_dict()
    empty = dict.fromkeys(("split_tokens", "requests", "long_requests_ratio", "long_tokens_ratio"))
    result = {**empty, **(said or {}), "long_ratio": long_ratio, "source": source}
    result["reason"] = "no_prompts" if found is None else None
    context.show(result, lambda shown: _split_line(context, shown))
    return NO if found is None else None


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
    needed: Annotated[int | None, typer.Option("--needed", help="replicas that the load needs", min=0)] = None,
    service: Annotated[str | None, typer.Option("--service", help="whose newest plan says how many")] = None,
    losses: Annotated[int, typer.Option("--losses", help="domains that may be gone at once", min=0)] = 1,
    domains: Annotated[int | None, typer.Option("--domains", help="how many there are", min=1)] = None,
    domain: Annotated[
        str, typer.Option("--domain", help="node, or a label of nodes (zone, nvlink_domain), with --service")
    ] = "node",
    gpus_per_replica: Annotated[int | None, typer.Option("--gpus-per-replica", help="TP x PP", min=1)] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option("--gpus-per-node", help="to count whole nodes; with --service those of the plan", min=1),
    ] = None,
) -> None:
    """Count replicas so that enough are left when nodes, racks or zones are gone, and the whole nodes for them."""
    from planner.capacity import redundancy  # noqa: PLC0415

    if (needed is None) == (service is None):
        raise UsageError("how many replicas are needed?", hint="give --needed, or --service for those of its plan")
    wanted = 0
    if service is not None:
        needed, seen, group, size, wanted = _planned(context, service, domain)
        domains, gpus_per_replica = domains or seen, gpus_per_replica or group
        gpus_per_node = gpus_per_node or (size if gpus_per_replica else None)
    if domains is None:
        raise UsageError("over how many failure domains?", hint="give --domains: nodes, racks or zones")
    found = redundancy.with_spares(int(needed or 0), domains=domains, losses=losses)
    nodes = None
    if gpus_per_node is not None:
        if gpus_per_replica is None:
            raise UsageError("--gpus-per-node needs --gpus-per-replica", hint="give TP x PP of a replica")
        nodes = redundancy.whole_nodes(found.replicas, gpus_per_replica=gpus_per_replica, gpus_per_node=gpus_per_node)
    lines = [found.line(context.language)] + ([] if nodes is None else [nodes.line(context.language)])
    if wanted > found.needed:
        said = {"service": service, "wanted": str(wanted), "needed": str(found.needed)}
        lines.append(translate("capacity.spares_capped", context.language, **said))
    result = {"service": service, **found.as_dict(), "nodes": None if nodes is None else nodes.as_dict()}
    context.show({**result, "derivation": lines}, lambda shown: "\n".join(shown["derivation"]))


def _planned(context: Context, service: str, domain: str) -> tuple[int, int | None, int | None, int | None, int]:
    """The newest plan's target, the service's domains, GPUs of a replica and of a node, and what the load needs."""
    from service.cli.capacity.newest_plan import newest_plan  # noqa: PLC0415
    from service.wiring import stores as wiring_stores  # noqa: PLC0415

    plan = newest_plan(context.settings())
    with wiring_stores.state_reader(context.settings()) as state:
        topology = state.topology()
    entity = _service([item.service for item in plan.recommendations], service)
    item = next(one for one in plan.recommendations if one.service == entity)
    if not isinstance(item, Recommendation):
        raise UsageError(f"{service} has no plan: {item.reason.value}", hint="give --needed")
    nodes = topology.below(entity, EntityKind.NODE)
    places = {node.name if domain == "node" else topology.label(node, domain) for node in nodes} - {""}
    if nodes and not places:
        raise UsageError(f"no node of {service} has the label {domain!r}", hint="give --domains, or --domain node")
    group = item.gpus // item.target_replicas if item.target_replicas else None
    needs = [item.derivation.get(name) or 0 for name in ("need_now", "need_forecast")]
    size = (item.derivation.get("nodes") or {}).get("gpus_per_node")
    return item.target_replicas, len(places) or None, group, size, max(needs)


def _service(known: Any, name: str) -> EntityRef:
    found: list[EntityRef] = [one for one in known if one.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        spaces = ", ".join(str(one.namespace) for one in found)
        raise UsageError(f"{name} is the name of {len(found)} services", hint=f"they are in {spaces}: name one apart")
    names = ", ".join(sorted(one.name for one in known)) or "none yet"
    raise UsageError(f"no service is named {name!r}", hint=f"known services: {names}")
