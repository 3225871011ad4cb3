"""``outrider serve`` and the processes it supervises."""

from __future__ import annotations

from pathlib import Path

import typer

from dashboards import run as dashboard
from outrider import log
from service.api import serve as api_server
from service.api.dependencies import ApiExtras
from service.cli.core.common import Context, leaf
from service.config import settings as settings_file
from service.config.settings import Settings
from service.ops import port_check
from service.runtime import leader, process, supervise
from service.wiring import alerting as wiring_alerting
from service.wiring import api as wiring_api
from service.wiring import stores as wiring_stores


def add(app: typer.Typer) -> None:
    """Registers the commands at the top level."""

    @leaf(app, "serve", example="outrider serve --config outrider.yaml")
    def serve(context: Context) -> int:
        """Run the platform: engine, API and dashboard, each restarted if it exits."""
        settings = context.settings()
        log.configure(level=settings.log.level)
        addresses = {"api.port": (settings.api.host, settings.api.port)}
        if settings.dashboard.enabled:
            addresses["dashboard.port"] = (settings.dashboard.host, settings.dashboard.port)
        port_check.require_free(addresses)
        if not process.may_stand_by(settings):
            leader.check_alone(settings)
        wiring_stores.upgrade(settings)
        supervisor = supervise.Supervisor(children(settings, settings_file.find(context.config)))
        supervisor.start()
        typer.echo(f"API        http://{settings.api.host}:{settings.api.port}/api/v1", err=True)
        if settings.dashboard.enabled:
            typer.echo(f"dashboard  http://{settings.dashboard.host}:{settings.dashboard.port}", err=True)
        return supervisor.watch()

    @leaf(app, "run-engine", example="outrider run-engine", hidden=True)
    def run_engine(context: Context) -> None:
        """Run the engine only."""
        settings = context.settings()
        log.configure(level=settings.log.level)
        process.run(settings)

    @leaf(app, "run-api", example="outrider run-api", hidden=True)
    def run_api(context: Context) -> None:
        """Run the API only."""
        settings = context.settings()
        log.configure(level=settings.log.level)
        api_server.run(
            wiring_api.api_settings(settings),
            ApiExtras(explainer=wiring_alerting.explainer(settings), knowledge=settings.knowledge.catalog()),
        )


def children(settings: Settings, config: Path | None, *, with_engine: bool = True) -> list[supervise.Child]:
    """Processes of a platform."""
    named = ["--config", str(config)] if config else []
    processes = [supervise.Child("engine", supervise.own_command("run-engine", *named))] if with_engine else []
    processes.append(supervise.Child("api", supervise.own_command("run-api", *named)))
    if settings.dashboard.enabled:
        processes.append(supervise.Child("dashboard", dashboard_command(settings)))
    return processes


def dashboard_command(settings: Settings) -> list[str]:
    """Command line of the dashboard process."""
    return dashboard.command(
        f"http://{settings.api.host}:{settings.api.port}", port=settings.dashboard.port, host=settings.dashboard.host
    )
