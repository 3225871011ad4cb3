"""``outrider collect`` and ``outrider doctor``: one look at pages."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from outrider.clock import SystemClock
from outrider.errors import UsageError
from service import pages
from service.cli import tables
from service.cli.common import ON_A_TERMINAL, Context, leaf

app = typer.Typer(help="Collect by hand.", no_args_is_help=ON_A_TERMINAL)
Pages = Annotated[list[str] | None, typer.Option("--page", help="ADAPTER=PATH_OR_URL, instead of the configuration")]


@leaf(app, "once", example="outrider collect once --page vllm=http://127.0.0.1:8000/metrics")
def once(context: Context, page: Pages = None) -> None:
    """Collect once and print every signal."""
    result = asyncio.run(pages.once(context.settings(), _pairs(page), SystemClock()))
    context.show(result, _once_table)


def add_doctor(root: typer.Typer) -> None:
    """Register ``doctor`` on the root."""

    @leaf(root, "doctor", example="outrider doctor --page dcgm=./page.txt")
    def doctor(context: Context, page: Pages = None) -> None:
        """Say which signals each target has, lacks or spells in an old way, and what that disables."""
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
    blocks = []
    for target in result["targets"]:
        if target["error"]:
            blocks.append(f"{target['target']} ({target['adapter']}): {target['error']}")
            continue
        rows = [[m["signal"], ", ".join(m["expected"]), ", ".join(m["disables"]), m["fix"]] for m in target["missing"]]
        rows += [[f"{m['signal']} quantiles", ", ".join(m["expected"]), "", m["fix"]] for m in target["means_only"]]
        old = [[signal, name] for signal, name in target["old_spellings"].items()]
        parts = [
            f"{target['target']} ({target['adapter']}): {len(target['present'])} signals present",
            tables.table(["missing", "expected", "disables", "fix"], rows, empty="nothing missing"),
            *([tables.table(["signal", "old name in use"], old, empty="")] if old else []),
        ]
        blocks.append("\n".join(parts))
    return "\n\n".join(blocks) or "no targets are configured"
