"""``outrider demo``: the whole product on a simulated fleet."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from typing import Annotated, Any

import httpx
import typer

from outrider import log
from outrider.clock import SystemClock
from outrider.text.i18n import Language, translate
from service.cli.core import tables
from service.cli.core.common import Context, leaf
from service.cli.core.progress import bars
from service.cli.ops.serve import children
from service.config.settings import GameDaySettings
from service.config.tokens import token_file
from service.ops import demo, port_check
from service.planning import hindsight
from service.runtime import supervise


def add(app: typer.Typer) -> None:
    """Registers the command at the top level."""

    @leaf(app, "demo", example="outrider demo --headless --minutes 60 -o json")
    def run(
        context: Context,
        minutes: Annotated[
            float, typer.Option("--minutes", min=0.25, max=525_600, help="Minutes of fleet time of a headless run.")
        ] = 60.0,
        headless: Annotated[
            bool, typer.Option("--headless", help="Run without dashboard, in lockstep, at full speed.")
        ] = False,
        port: Annotated[int, typer.Option("--port", help="Port of the dashboard.")] = 8501,
        api_port: Annotated[int, typer.Option("--api-port", help="Port of the API.")] = 8600,
        seed: Annotated[int, typer.Option("--seed", help="Seed of the fleet, its load and its faults.")] = 7,
        speed: Annotated[
            float, typer.Option("--speed", min=0.1, help="Speed of fleet time relative to real time.")
        ] = 1.0,
    ) -> None:
        """Run the whole loop on a simulated fleet: GPU lost, traffic surge, hung engine.

        Fleet time: a GPU is lost after 5 minutes, traffic surges after 20, an engine hangs after 40. Of a file
        given with --config, game days run, and the limits of remediation apply: levels, approvals, windows, kill
        switch, playbooks. They are read again when the file changes. Nothing else of it is used.
        """
        log.configure(level="error")  # failures are part of the demo
        days = demo.game_days(context.config)
        if not headless:
            port_check.require_free({"--port": ("127.0.0.1", port), "--api-port": ("127.0.0.1", api_port)})
            asyncio.run(_with_dashboard(context, seed, port, api_port, speed, days))
            return
        with bars(context) as progress:
            result = asyncio.run(
                demo.headless(
                    minutes=minutes,
                    seed=seed,
                    language=context.language,
                    progress=progress,
                    days=days,
                    config=context.config,
                )
            )
        context.show(result, lambda shown: _seen(shown, context.language))


def _seen(shown: dict[str, Any], language: Language) -> str:
    """Results of a headless run as tables."""
    return "\n\n".join(
        [
            tables.incidents(shown["incidents"], language),
            tables.actions(shown["actions"], language),
            tables.recommendations(shown["recommendations"], language),
            *(hindsight.sentence(service, language) for service in shown["looking_back"]),
        ]
    )


async def _with_dashboard(
    context: Context, seed: int, port: int, api_port: int, speed: float, days: Sequence[GameDaySettings]
) -> None:
    started = SystemClock().now().replace(microsecond=0) - demo.LEAD_IN
    with bars(context) as progress:
        running = await demo.start(
            seed=seed,
            start_at=started,
            port=port,
            api_port=api_port,
            progress=progress,
            days=days,
            config=context.config,
        )
        cycles = round(demo.LEAD_IN / running.interval)
        for cycle in range(cycles):
            await running.step()
            progress("fleet", (cycle + 1) / cycles)
        while running.fleet.now + running.interval <= SystemClock().now():
            await running.step()  # catch up with the time of the preparation
    supervisor = supervise.Supervisor(children(running.settings, demo.FOLDER / "demo.yaml", with_engine=False))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    supervisor.start()
    running.on_limits = lambda: supervisor.restart("api")  # it shows the level, and knows whether a dry run is on
    try:
        await _print_address(running, stop, context)
        await demo.follow(running, speed=speed, stop=stop)
    finally:
        await asyncio.to_thread(supervisor.stop)
        await running.close()


async def _print_address(running: demo.Demo, stop: asyncio.Event, context: Context) -> None:
    """Prints the dashboard address once it responds."""
    url = f"http://127.0.0.1:{running.settings.dashboard.port}"
    deadline = time.monotonic() + 60
    async with httpx.AsyncClient() as client:
        while not stop.is_set() and time.monotonic() < deadline:
            try:
                if (await client.get(f"{url}/_stcore/health")).is_success:
                    break
            except httpx.HTTPError:
                await asyncio.sleep(0.3)
    typer.echo(translate("cli.demo_ready", context.language, url=url), err=True)
    config = demo.FOLDER / "demo.yaml"
    token = token_file(running.settings)
    typer.echo(translate("cli.demo_token", context.language, token=token, config=config), err=True)
    switch = running.platform.settings.remediation.kill_switch_file
    if switch is not None:
        typer.echo(translate("cli.demo_stop", context.language, file=switch), err=True)
