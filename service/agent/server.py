"""The agent of a GPU node: device metrics and kernel log of one node, over HTTP. Read only.

    GET /metrics              metrics of the devices, named as in dcgm-exporter
    GET /klog?after=SEQUENCE  records of the kernel log, with the headers Boot-Id and Boot-Time
    GET /xids?after=SEQUENCE  XIDs that the driver reported to this process, in the same form
    GET /healthz              200 while the process responds

One thread calls the library, so that calls never overlap. Metrics are read at most once a second, for all clients.
If the library hangs, all endpoints still respond, and ``/metrics`` reports the hang.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from importlib import metadata

from aiohttp import web

from collectors.accelerators import exposition as pages
from collectors.accelerators.snapshot import AcceleratorsUnavailableError, Reader, Xid, XidLedger
from collectors.logs.kernel_file import KernelFile
from outrider import log
from outrider.clock import Clock
from outrider.errors import OutriderError, UnavailableError
from service.agent.logs import KernelRecords, XidRecords

FRESH = timedelta(seconds=1)  # a page is reused for all clients
READ_TIMEOUT = timedelta(seconds=8)  # below the scrape timeout of Prometheus, 10 s
LISTEN = timedelta(milliseconds=100)  # one wait for driver events; delays a read at most this long
LISTEN_RETRY = timedelta(seconds=1)  # between attempts if the library has no events
REREAD = timedelta(seconds=10)  # between own reads without events and without requests
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def once(open_reader: Callable[[], Reader], clock: Clock, node: str) -> str:
    """Returns the exposition page, read once. Raises AcceleratorsUnavailableError."""
    started, reader = clock.monotonic(), open_reader()
    try:
        snapshot = reader.read()
    finally:
        reader.close()
    info = pages.AgentInfo(node, reader.name, metadata.version("outrider"), clock.monotonic() - started)
    return pages.exposition_page(snapshot, XidLedger(), info, clock.now())


class Agent:
    """Reads one node. If ``open_reader`` raises AcceleratorsUnavailableError, every page retries it."""

    def __init__(self, open_reader: Callable[[], Reader], clock: Clock, node: str, kernel: KernelFile | None) -> None:
        """``kernel`` is the kernel log of this node, None for an agent that does not serve it."""
        self._open, self._clock, self._node = open_reader, clock, node
        self._reader: Reader | None = None
        self._source = "none"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="accelerators")
        self._ledger = XidLedger()
        self._page: tuple[float, int, str] | None = None
        self._reading: asyncio.Task[tuple[int, str]] | None = None
        self._logged_error = ""
        self.kernel = None if kernel is None else KernelRecords(kernel)
        self.xids = XidRecords(clock)

    # --- exposition page ------------------------------------------------------------------------------

    async def page(self) -> tuple[int, str]:
        """Returns HTTP status and page, within ``READ_TIMEOUT``."""
        now = self._clock.monotonic()
        if self._page is not None and now - self._page[0] < FRESH.total_seconds():
            return self._page[1:]
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="read accelerators")
        try:
            return await asyncio.wait_for(asyncio.shield(self._reading), READ_TIMEOUT.total_seconds())
        except TimeoutError:
            message = f"the driver has not responded for {READ_TIMEOUT.total_seconds():g} s"
            return self._failure(UnavailableError(message, hint="nvidia-smi probably hangs too: see the kernel log"))

    async def _read(self) -> tuple[int, str]:
        started = self._clock.monotonic()
        try:
            response = await asyncio.get_running_loop().run_in_executor(self._thread, self._read_devices, started)
        except AcceleratorsUnavailableError as error:
            response = self._failure(error)
        self._page = (self._clock.monotonic(), *response)
        return response

    def _read_devices(self, started: float) -> tuple[int, str]:
        """Runs in the thread of the library."""
        if self._reader is None:
            self._reader = self._open()
            self._source = self._reader.name
        try:
            snapshot = self._reader.read()
        except AcceleratorsUnavailableError:
            reader, self._reader = self._reader, None  # the next read may open another library
            reader.close()
            raise
        info = self._info(self._clock.monotonic() - started)
        if self._logged_error:
            self._logged_error = ""
            log.get("agent").info("read_again", source=self._source, devices=len(snapshot.devices))
        return 200, pages.exposition_page(snapshot, self._ledger, info, self._clock.now())

    def _failure(self, error: OutriderError) -> tuple[int, str]:
        """Logs an error once, and returns it as comments of the page with status 503."""
        if error.message != self._logged_error:
            self._logged_error = error.message
            log.get("agent").warning("cannot_read", error=error.message, hint=error.hint)
        comments = "".join(f"# {line}\n" for line in (error.message, error.hint) if line)
        return 503, comments + pages.agent_lines(self._info(0.0), up=False)

    def _info(self, seconds: float) -> pages.AgentInfo:
        return pages.AgentInfo(self._node, self._source, metadata.version("outrider"), seconds)

    # --- XIDs -----------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Receives XIDs until cancelled. The first read opens the library; later ones follow requests."""
        await self.page()
        listening = False
        while True:
            xids = await asyncio.get_running_loop().run_in_executor(self._thread, self._wait)
            for xid in xids or ():
                self._record(xid)
            if xids is None:
                if listening or self._page is None or self._clock.monotonic() - self._page[0] > REREAD.total_seconds():
                    self._page = None
                    await self.page()  # reopens the library
                await asyncio.sleep(LISTEN_RETRY.total_seconds())
            listening = xids is not None

    def _wait(self) -> list[Xid] | None:
        return None if self._reader is None else self._reader.wait(LISTEN)

    def _record(self, xid: Xid) -> None:
        self._ledger.add(xid)
        self.xids.add(xid)
        self._page = None  # the next page contains it
        log.get("agent").warning("xid", code=xid.code, device=xid.device.uuid, pci=xid.device.pci)

    async def close(self) -> None:
        """Closes the library, unless it hangs."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
        elif self._reader is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._reader.close)
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self.kernel is not None:
            self.kernel.close()


def application(agent: Agent) -> web.Application:
    """HTTP endpoints of an agent."""
    app = web.Application()

    async def metrics(_: web.Request) -> web.Response:
        status, text = await agent.page()
        return web.Response(status=status, body=text.encode(), headers={"Content-Type": _TEXT})

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def index(_: web.Request) -> web.Response:
        return web.Response(text="outrider agent: /metrics /klog /xids /healthz\n")

    app.router.add_get("/", index)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/klog", partial(_records, agent, "klog"))
    app.router.add_get("/xids", partial(_records, agent, "xids"))
    app.cleanup_ctx.append(partial(_listening, agent))
    return app


async def _records(agent: Agent, endpoint: str, request: web.Request) -> web.Response:
    after = request.query.get("after", "")
    if after and not after.isdecimal():
        return web.Response(status=400, text=f"after={after} is not a sequence number\n")
    if endpoint == "klog" and agent.kernel is None:
        return web.Response(status=404, text="this agent does not serve the kernel log: see --kmsg\n")
    records = agent.xids if endpoint == "xids" or agent.kernel is None else agent.kernel
    try:
        response = await asyncio.to_thread(records.after, int(after) if after else None)
    except OSError as error:
        message = f"the kernel log cannot be read: {error.strerror}; reading /dev/kmsg needs CAP_SYSLOG\n"
        return web.Response(status=503, text=message)
    headers = {"Boot-Id": response.boot_id, "Boot-Time": response.boot_time}
    return web.Response(text=response.text, headers={name: value for name, value in headers.items() if value})


async def _listening(agent: Agent, _: web.Application) -> AsyncIterator[None]:
    task = asyncio.create_task(agent.listen(), name="listen for XIDs")
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await agent.close()


@asynccontextmanager
async def serving(agent: Agent, host: str, port: int) -> AsyncIterator[str]:
    """Serves an agent; yields its address. Raises UnavailableError if the port is in use."""
    runner = web.AppRunner(application(agent), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise UnavailableError(f"port {port} on {host} is in use", hint="select another with --port") from error
        address = runner.addresses[0]
        yield f"http://{address[0]}:{address[1]}"
    finally:
        await runner.cleanup()
