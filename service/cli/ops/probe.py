"""``outrider probe``: one synthetic request per probe."""

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
    """Registers ``probe`` at the top level."""

    @leaf(root, "probe", example="outrider probe --url https://chat.example/v1 --model llama-70b")
    def probe(
        context: Context,
        name: Annotated[list[str] | None, typer.Argument(help="Probes of the configuration. Default: all.")] = None,
        url: Annotated[
            str | None, typer.Option("--url", help="Endpoint to probe instead: http(s)://, grpc(s)://, tls://, dns://.")
        ] = None,
        kind: Annotated[
            str | None,
            typer.Option(
                "--type", help="Probe type: generation, http, tls, dns or grpc. Default: guessed from the URL."
            ),
        ] = None,
        model: Annotated[
            str | None, typer.Option("--model", help="Model to request. Default: the first one listed.")
        ] = None,
        prompt: Annotated[str | None, typer.Option("--prompt", help="Prompt to send.")] = None,
        max_tokens: Annotated[
            int | None, typer.Option("--max-tokens", help="Maximum number of tokens to generate.")
        ] = None,
        timeout: Annotated[str | None, typer.Option("--timeout", help="Deadline for --url, for example 30s.")] = None,
        bearer_token_file: Annotated[
            Path | None, typer.Option("--bearer-token-file", help="File with the bearer token for --url.")
        ] = None,
    ) -> int:
        """Run all probes once. Exits 1 if any fails."""
        options: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": max_tokens}
        overrides = {key: value for key, value in options.items() if value is not None}
        settings = context.settings()
        if url is None:
            chosen = one_off_probe.chosen(settings, name or [])
            chosen = [one_off_probe.with_request(probe_settings, overrides) for probe_settings in chosen]
        else:
            more: dict[str, Any] = {"timeout": timeout, "bearer_token_file": bearer_token_file}
            overrides |= {key: value for key, value in more.items() if value is not None}
            chosen = [one_off_probe.at_url(url, kind, overrides)]
        result = asyncio.run(one_off_probe.once(chosen, settings.cluster, SystemClock(), context.language))
        context.show(result, _table)
        return YES if all(row["success"] for row in result["probes"]) else NO


def _table(result: dict[str, Any]) -> str:
    headings = ["probe", "", "outcome", "TTFT", "ITL", "E2E latency", "tokens", "certificate", ""]
    rows = [
        [
            row["probe"],
            {True: "ok", False: "FAILED", None: "not sent"}[row["success"]],
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
