"""``outrider collect`` and ``outrider doctor``: one-off collection."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Annotated, Any

import typer

from collectors.mapping import registry
from collectors.prometheus import recording_rules
from outrider import log
from outrider.clock import SystemClock
from outrider.documents.summaries import word
from outrider.errors import UsageError
from outrider.text.i18n import Language, translate
from service.cli.core import tables, values
from service.cli.core.common import ON_A_TERMINAL, Context, duration_of, instant_of, leaf
from service.cli.core.progress import bars
from service.ops import one_off_collect, permission_check

app = typer.Typer(help="Collect once, export recording rules, import history.", no_args_is_help=ON_A_TERMINAL)
# logged events that the result already contains
_REPORTED = (
    *("scrape_failed", "prometheus_unreachable", "discovery_failed"),
    *("series_exploded", "series_more_than_once", "two_types_of_a_metric"),
)
Pages = Annotated[
    list[str] | None, typer.Option("--page", help="ADAPTER=PATH_OR_URL, instead of the configuration. Repeatable.")
]


@leaf(app, "once", example="outrider collect once --page vllm=http://127.0.0.1:8000/metrics")
def once(context: Context, page: Pages = None) -> None:
    """Collect once and print every signal."""
    log.configure(level="warning", quiet=_REPORTED)
    result = asyncio.run(one_off_collect.once(context.settings(), _pairs(page), SystemClock()))
    context.show(result, lambda shown: _once_table(shown, context.language))


@leaf(app, "rules", example="outrider collect rules --adapter vllm --adapter dcgm > outrider-rules.yml")
def rules_(
    context: Context,
    adapter: Annotated[list[str] | None, typer.Option(help="Only these adapters. Default: all.")] = None,
    window: Annotated[str, typer.Option(help="Window of rates and quantiles, for example 5m.")] = "5m",
) -> None:
    """Print every signal as a Prometheus recording rule, with the jobs of collect.prometheus kept apart."""
    duration_of("--window", window)
    for name in adapter or ():
        registry.adapter(name)
    prometheus = context.settings().collect.prometheus
    jobs: dict[str, list[str]] = {}
    for job, name in (prometheus.jobs if prometheus else {}).items():
        jobs.setdefault(name, []).append(job)
    document, left_out = recording_rules.rules(adapter or list(registry.ADAPTERS), window=window, jobs=jobs)
    for name, missing in left_out.items():
        for signal, reason in missing.items():
            typer.echo(f"left out: {signal} of {name}: {reason}", err=True)
    context.show(document)


@leaf(app, "backfill", example="outrider collect backfill --days 15")
def backfill_(
    context: Context,
    days: Annotated[float, typer.Option(min=0.01, max=3650, help="Days to import, for example 15.")] = 15.0,
    since: Annotated[str | None, typer.Option(help="Start time (RFC 3339), instead of a span.")] = None,
    until: Annotated[str | None, typer.Option(help="End time (RFC 3339). Default: now.")] = None,
) -> None:
    """Import the history of collect.prometheus into the store. The platform must be stopped."""
    from service.ops import backfill  # noqa: PLC0415 - imports the whole platform

    end = instant_of("--until", until) if until else SystemClock().now()
    start = instant_of("--since", since) if since else end - timedelta(days=days)
    with bars(context) as progress:
        imported = backfill.run(context.settings(), start, end, progress)
    context.show(imported, lambda shown: _filled(shown, context.language))


def add_doctor(root: typer.Typer) -> None:
    """Registers ``doctor`` at the top level."""

    @leaf(root, "doctor", example="outrider doctor --page dcgm=./page.txt")
    def doctor(context: Context, page: Pages = None) -> None:
        """Report available, missing and deprecated metrics per target, and the features affected."""
        log.configure(level="warning", quiet=_REPORTED)
        settings = context.settings()
        result = asyncio.run(one_off_collect.doctor(settings, _pairs(page), SystemClock(), context.language))
        if not page:
            result |= permission_check.permissions(settings)
        context.show(result, lambda shown: _doctor_table(shown, context.language))


def _pairs(page: list[str] | None) -> list[tuple[str, str]]:
    pairs = []
    for text in page or []:
        adapter, equals, location = text.partition("=")
        if not equals or not adapter or not location:
            raise UsageError(
                f"--page {text!r} is not ADAPTER=PATH_OR_URL", hint="for example --page vllm=./metrics.txt"
            )
        pairs.append((adapter, location))
    return pairs


def _once_table(result: dict[str, Any], language: Language) -> str:
    targets = [
        [
            t["target"],
            t["adapter"],
            translate("cli.up" if t["up"] else "cli.down", language),
            "-" if t["samples"] is None else str(t["samples"]),
            t["error"] or t.get("warning") or "",
        ]
        for t in result["targets"]
    ]
    rows = [
        [tables.entity(s["entity"]), _named(s, language), values.text_of(s, language), _note(s, language)]
        for s in result["signals"]
    ]
    of_targets = tables.heads(language, "target", "adapter", "", "samples", "error")
    of_signals = tables.heads(language, "entity", "signal", "value", "")
    return "\n\n".join(
        [
            tables.table(of_targets, targets, empty=translate("cli.no_targets", language)),
            tables.table(of_signals, rows, empty=translate("cli.no_signals", language)),
        ]
    )


def _named(signal: dict[str, Any], language: Language) -> str:
    if signal.get("quantile"):
        return f"{signal['signal']} p{signal['quantile'] * 100:g}"
    statistic = f" {translate('cli.mean', language)}" if signal.get("statistic") else ""
    return f"{signal['signal']}{statistic}"


def _note(signal: dict[str, Any], language: Language) -> str:
    """Reason for a missing value, or the span it covers."""
    if signal.get("reason"):
        return translate(f"cli.{signal['reason']}", language)
    return translate("cli.since_start", language) if signal.get("since") else ""


def _filled(result: dict[str, Any], language: Language) -> str:
    more = {"start": result["from"], "end": result["to"]}
    return translate("cli.backfilled", language, **result, **more)


def _doctor_table(result: dict[str, Any], language: Language = "en") -> str:
    alike: dict[str, list[dict[str, Any]]] = {}
    for target in result["targets"]:  # identical targets are reported once
        alike.setdefault(json.dumps({**target, "target": "", "unknown_metrics": 0}, sort_keys=True), []).append(target)
    blocks = [_diagnosis(targets, language) for targets in alike.values()]
    unread = result.get("jobs_without_adapter")
    if unread:
        blocks.append(translate("cli.unread_jobs", language, jobs=", ".join(unread)))
    blocks += permission_blocks(result.get("permissions"), language)
    return "\n\n".join(blocks) or translate("cli.no_targets", language)


def permission_blocks(checked: dict[str, Any] | None, language: Language) -> list[str]:
    """The permissions that actions on Kubernetes lack, as one block; empty if none is checked."""
    if checked is None:
        return []
    unknown = [translate("cli.permissions_unknown", language, error=checked["error"])] if checked["error"] else []
    lines = [
        translate(
            "cli.permissions_missing",
            language,
            action=word("action_kind", row["action"], language),
            account=row["account"],
            permissions=", ".join(_permission(each, language) for each in row["permissions"]),
        )
        for row in checked["missing"]
    ]
    if not unknown and not lines:
        return [translate("cli.permissions_complete", language)]
    return ["\n".join([*unknown, *lines])]


def _permission(row: dict[str, Any], language: Language) -> str:
    text = f"{row['verb']} {row['resource']}"
    if not row["namespace"]:
        return text
    return translate("cli.permission_in_namespace", language, permission=text, namespace=row["namespace"])


def _diagnosis(targets: list[dict[str, Any]], language: Language) -> str:
    target, more = targets[0], len(targets) - 1
    head = f"{target['target']} ({target['adapter']})"
    head = translate("cli.more_like_it", language, target=head, count=more) if more else head
    if target["error"]:
        return f"{head}: {target['error'].removeprefix(target['target'] + ': ')}"
    rows = [[m["signal"], ", ".join(m["expected"]), ", ".join(m["disables"]), m["fix"]] for m in target["missing"]]
    rows += [
        [translate("cli.quantiles", language, signal=m["signal"]), ", ".join(m["expected"]), "", m["fix"]]
        for m in target["means_only"]
    ]
    old = [[signal, name] for signal, name in target["old_spellings"].items()]
    headings = tables.heads(language, "missing", "expected", "disables", "fix")
    parts = [
        translate("cli.signals_present", language, target=head, count=len(target["present"])),
        *([target["warning"]] if target.get("warning") else []),
        tables.table(headings, rows, empty=translate("cli.nothing_missing", language)),
        *([tables.table(tables.heads(language, "signal", "old_name"), old, empty="")] if old else []),
    ]
    return "\n".join(parts)
