"""``outrider probe``: ask a door of a service as a client would, once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.clock import SystemClock
from service.cli.core import tables
from service.cli.core.common import NO, YES, Context, leaf
from service.ops import one_off_probe


def add(root: typer.Typer) -> None:
    """Register ``probe`` on the root."""

    @leaf(root, "probe", example="outrider probe --url https://chat.example/v1 --model llama-70b")
    def probe(
        context: Context,
        name: Annotated[
            list[str] | None, typer.Argument(help="probes of the configuration; all when none is named")
        ] = None,
        url: Annotated[
            str | None, typer.Option("--url", help="a door instead: http(s)://, grpc(s)://, tls://, dns://")
        ] = None,
        kind: Annotated[
            str | None, typer.Option("--type", help="generation, http, tls, dns or grpc; guessed from the URL")
        ] = None,
        model: Annotated[
            str | None, typer.Option("--model", help="model to ask; the first one listed when not given")
        ] = None,
        prompt: Annotated[str | None, typer.Option("--prompt", help="what to ask the model")] = None,
        max_tokens: Annotated[
            int | None, typer.Option("--max-tokens", help="the most tokens the answer may cost")
        ] = None,
        timeout: Annotated[str | None, typer.Option("--timeout", help="of --url, such as 30s")] = None,
        bearer_token_file: Annotated[Path | None, typer.Option("--bearer-token-file", help="of --url")] = None,
    ) -> int:
        """Ask doors of services once; the answer is no when one of them fails."""
        given: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": max_tokens}
        asked = {key: value for key, value in given.items() if value is not None}
        settings = context.settings()
        if url is None:
            chosen = one_off_probe.chosen(settings, name or [])
            chosen = [one_off_probe.asking(one, asked) for one in chosen]
        else:
            more: dict[str, Any] = {"timeout": timeout, "bearer_token_file": bearer_token_file}
            asked |= {key: value for key, value in more.items() if value is not None}
            chosen = [one_off_probe.at_url(url, kind, asked)]
        result = asyncio.run(one_off_probe.once(chosen, settings.cluster, SystemClock(), context.language))
        context.show(result, _table)
        return YES if all(row["success"] for row in result["probes"]) else NO


def _table(result: dict[str, Any]) -> str:
    headings = ["probe", "", "outcome", "first token", "between tokens", "whole", "tokens", "certificate", ""]
    rows = [
        [
            row["probe"],
            {True: "ok", False: "FAILED", None: "not asked"}[row["success"]],
            row["means"],
            _seconds(row["ttft_seconds"]),
            _seconds(row["itl_seconds"]),
            _seconds(row["e2e_seconds"]),
            "-" if row["tokens"] is None else str(row["tokens"]),
            "-" if row["cert_expiry_seconds"] is None else f"{row['cert_expiry_seconds'] / 86400:.0f} d",
            row["said"],
        ]
        for row in result["probes"]
    ]
    return tables.table(headings, rows, empty="no probes are configured")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"
