"""``outrider agent``: exporter process on each GPU node."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from collectors.logs.kernel_file import KernelFile
from outrider import log
from outrider.clock import SystemClock
from service.agent import server as agents
from service.agent.device_reader import opener
from service.cli.core import entry
from service.cli.core.common import YES, Context, leaf

PORT = 9800
NODE_NAME = "NODE_NAME"  # environment variable set by the DaemonSet


class AgentSource(StrEnum):
    """Library that reads the devices."""

    AUTO = "auto"
    NVML = "nvml"
    DCGM = "dcgm"


def add(app: typer.Typer) -> None:
    """Registers the command at the top level."""

    @leaf(app, "agent", example="outrider agent --once")
    def agent(
        context: Context,
        port: Annotated[
            int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 selects a free one.")
        ] = PORT,
        host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "0.0.0.0",  # noqa: S104
        node: Annotated[
            str | None, typer.Option("--node", help="Name of this node. Default: $NODE_NAME, else the host name.")
        ] = None,
        source: Annotated[
            AgentSource, typer.Option("--source", help="auto: DCGM if its host engine responds, else NVML.")
        ] = AgentSource.AUTO,
        kmsg: Annotated[Path, typer.Option("--kmsg", help="Kernel log to serve at /klog.")] = Path("/dev/kmsg"),
        once: Annotated[bool, typer.Option("--once", help="Print the metrics page once and exit.")] = False,
    ) -> int:
        """Serve metrics of local NVIDIA devices and the kernel log, in dcgm-exporter format."""
        del context
        log.configure(level="info")
        name = node or os.environ.get(NODE_NAME) or socket.gethostname()
        if once:
            typer.echo(agents.once(opener(source.value, SystemClock()), SystemClock(), name), nl=False)
            return YES
        return asyncio.run(_serve(name, source, kmsg, host, port))


async def _serve(node: str, source: AgentSource, kmsg: Path, host: str, port: int) -> int:
    ended = asyncio.Event()
    for kind in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(kind, ended.set)
    agent = agents.Agent(opener(source.value, SystemClock()), SystemClock(), node, KernelFile(kmsg))
    async with agents.serving(agent, host, port) as url:
        typer.echo(f"agent of {node}: {url}/metrics", err=True)
        await ended.wait()
    return YES


def main() -> None:
    """Runs the command line of the agent alone."""
    app = typer.Typer(name="outrider", add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_root)
    add(app)
    entry.run(app)


def _root() -> None:
    """Monitors, plans and repairs clusters that serve large language models."""
