"""``outrider collect`` and ``outrider doctor``: one look at pages."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Annotated, Any

import typer

from collectors import recording_rules, registry
from outrider import log
from outrider.clock import SystemClock
from outrider.errors import UsageError
from service import backfill, pages
from service.cli import tables
from service.cli.common import ON_A_TERMINAL, Context, duration_of, instant_of, leaf
from service.cli.progress import bars

app = typer.Typer(help="Collect by hand.", no_args_is_help=ON_A_TERMINAL)
_TOLD = ("scrape_failed", "prometheus_unreachable", "discovery_failed")  # each target's error stands in the result
Pages = Annotated[list[str] | None, typer.Option("--page", help="ADAPTER=PATH_OR_URL, instead of the configuration")]


@leaf(app, "once", example="outrider collect once --page vllm=http://127.0.0.1:8000/metrics")
def once(context: Context, page: Pages = None) -> None:
    """Collect once and print every signal."""
    log.configure(level="warning", quiet=_TOLD)
    result = asyncio.run(pages.once(context.settings(), _pairs(page), SystemClock()))
    context.show(result, _once_table)


@leaf(app, "rules", example="outrider collect rules --adapter vllm --adapter dcgm > outrider-rules.yml")
def rules_(
    context: Context,
    adapter: Annotated[list[str] | None, typer.Option(help="only these adapters; all when not given")] = None,
    window: Annotated[str, typer.Option(help="what rates and quantiles look back over, such as 5m")] = "5m",
) -> None:
    """Print every signal as a Prometheus recording rule. Jobs named in collect.prometheus are kept apart."""
    duration_of("--window", window)
    unknown = [name for name in adapter or () if name not in registry.ADAPTERS]
    if unknown:
        raise UsageError(f"no adapter {unknown[0]!r}", hint=f"known are {', '.join(registry.ADAPTERS)}")
    prometheus = context.settings().collect.prometheus
    jobs: dict[str, list[str]] = {}
    for job, name in (prometheus.jobs if prometheus else {}).items():
        jobs.setdefault(name, []).append(job)
    document, left_out = recording_rules.rules(adapter or list(registry.ADAPTERS), window=window, jobs=jobs)
    for name, missing in left_out.items():
        for signal, why in missing.items():
            typer.echo(f"left out: {signal} of {name}: {why}", err=True)
    context.show(document)


@leaf(app, "backfill", example="outrider collect backfill --days 15")
def backfill_(
    context: Context,
    days: Annotated[float, typer.Option(min=0.01, max=3650, help="how far back")] = 15.0,
    since: Annotated[str | None, typer.Option(help="instant to begin at instead, RFC 3339")] = None,
    until: Annotated[str | None, typer.Option(help="instant to end at, RFC 3339; now when not given")] = None,
) -> None:
    """Read the history of collect.prometheus into the store. The platform must not be running on it."""
    end = instant_of("--until", until) if until else SystemClock().now()
    start = instant_of("--since", since) if since else end - timedelta(days=days)
    with bars(context) as progress:
        found = backfill.run(context.settings(), start, end, progress)
    context.show(found)


def add_doctor(root: typer.Typer) -> None:
    """Register ``doctor`` on the root."""

    @leaf(root, "doctor", example="outrider doctor --page dcgm=./page.txt")
    def doctor(context: Context, page: Pages = None) -> None:
        """Say which signals each target has, lacks or spells in an old way, and what that disables."""
        log.configure(level="warning", quiet=_TOLD)
        result = asyncio.run(pages.doctor(context.settings(), _pairs(page), SystemClock(), context.language))
        context.show(result, _doctor_table)


def _pairs(page: list[str] | None) -> list[tuple[str, str]]:
    pairs = []
    for text in page or []:
        adapter, equals, place = text.partition("=")
        if not equals or not adapter or not place:
            raise UsageError(f"--page {text!r} is not ADAPTER=PATH_OR_URL", hint="such as --page vllm=./metrics.txt")
        pairs.append((adapter, place))
    return pairs


def _once_table(result: dict[str, Any]) -> str:
    targets = [
        [
            t["target"],
            t["adapter"],
            "up" if t["up"] else "DOWN",
            "-" if t["samples"] is None else str(t["samples"]),
            t["error"] or "",
        ]
        for t in result["targets"]
    ]
    rows = [
        [
            tables.entity(s["entity"]),
            s["signal"]
            + (f" p{s['quantile'] * 100:g}" if s.get("quantile") else f" {s.get('statistic', '')}".rstrip()),
            _said(s),
            s.get("unit", ""),
            s.get("reason", ""),
        ]
        for s in result["signals"]
    ]
    return "\n\n".join(
        [
            tables.table(["target", "adapter", "", "samples", "error"], targets, empty="no targets are configured"),
            tables.table(["entity", "signal", "value", "unit", ""], rows, empty="no signals"),
        ]
    )


def _said(signal: dict[str, Any]) -> str:
    """A value as people read it: below the first bucket only the bound is known."""
    if signal["value"] is None:
        return "-"
    return ("< " if signal.get("below_first_bucket") else "") + f"{signal['value']:g}"


def _doctor_table(result: dict[str, Any]) -> str:
    alike: dict[str, list[dict[str, Any]]] = {}
    for target in result["targets"]:  # ten thousand replicas of one release are told once
        alike.setdefault(json.dumps({**target, "target": "", "unknown_metrics": 0}, sort_keys=True), []).append(target)
    blocks = [_diagnosis(targets) for targets in alike.values()]
    unread = result.get("jobs_without_adapter")
    if unread:
        said = f"no adapter is known for the jobs {', '.join(unread)}"
        blocks.append(f"{said}; name it under collect.prometheus.jobs where one reads them")
    return "\n\n".join(blocks) or "no targets are configured"


def _diagnosis(targets: list[dict[str, Any]]) -> str:
    target, more = targets[0], len(targets) - 1
    head = f"{target['target']} ({target['adapter']})" + (f" and {more} more like it" if more else "")
    if target["error"]:
        return f"{head}: {target['error']}"
    rows = [[m["signal"], ", ".join(m["expected"]), ", ".join(m["disables"]), m["fix"]] for m in target["missing"]]
    rows += [[f"{m['signal']} quantiles", ", ".join(m["expected"]), "", m["fix"]] for m in target["means_only"]]
    old = [[signal, name] for signal, name in target["old_spellings"].items()]
    parts = [
        f"{head}: {len(target['present'])} signals present",
        tables.table(["missing", "expected", "disables", "fix"], rows, empty="nothing missing"),
        *([tables.table(["signal", "old name in use"], old, empty="")] if old else []),
    ]
    return "\n".join(parts)
