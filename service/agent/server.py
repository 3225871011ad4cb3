"""The agent of a GPU node: what the devices and the kernel of one machine say, over HTTP. Reads only.

    GET /metrics              the devices, in dcgm-exporter's names
    GET /klog?after=SEQUENCE  records of the kernel log, with the headers Boot-Id and Boot-Time
    GET /xids?after=SEQUENCE  XIDs that the driver told this process, in the same form
    GET /healthz              200 while the process answers

One thread asks the library, for pages and for XIDs in turn, so that no two calls overlap; a page is read at
most once a second, whoever asks. A library that hangs holds up no door: the page says so.
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

FRESH = timedelta(seconds=1)  # how long a page answers everybody
PATIENCE = timedelta(seconds=8)  # Prometheus gives up after 10 s
LISTEN = timedelta(milliseconds=100)  # how long a page may have to wait for the ear of the driver
REST = timedelta(seconds=1)  # between two tries to listen where there is nothing to listen to
RELOOK = timedelta(seconds=10)  # between looks of our own while there is nothing to listen to and nobody asks
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def once(open_reader: Callable[[], Reader], clock: Clock, node: str) -> str:
    """The page, read once. Raises AcceleratorsAwayError."""
    begun, reader = clock.monotonic(), open_reader()
    try:
        reading = reader.read()
    finally:
        reader.close()
    around = pages.AgentInfo(node, reader.name, metadata.version("outrider"), clock.monotonic() - begun)
    return pages.exposition_page(reading, XidLedger(), around, clock.now())


class Agent:
    """Reads one machine. ``open_reader`` may raise AcceleratorsAwayError: it is tried again at every page."""

    def __init__(self, open_reader: Callable[[], Reader], clock: Clock, node: str, kernel: KernelFile | None) -> None:
        """``kernel`` is this machine's kernel log, None for an agent without that door."""
        self._open, self._clock, self._node = open_reader, clock, node
        self._reader: Reader | None = None
        self._source = "none"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="accelerators")
        self._ledger = XidLedger()
        self._page: tuple[float, int, str] | None = None
        self._reading: asyncio.Task[tuple[int, str]] | None = None
        self._said = ""
        self.kernel = None if kernel is None else KernelRecords(kernel)
        self.xids = XidRecords(clock)

    # --- the page -------------------------------------------------------------------------------------

    async def page(self) -> tuple[int, str]:
        """HTTP status and page. Answers within ``PATIENCE``."""
        now = self._clock.monotonic()
        if self._page is not None and now - self._page[0] < FRESH.total_seconds():
            return self._page[1:]
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="read accelerators")
        try:
            return await asyncio.wait_for(asyncio.shield(self._reading), PATIENCE.total_seconds())
        except TimeoutError:
            said = f"the driver has not answered for {PATIENCE.total_seconds():g} s"
            return self._no(UnavailableError(said, hint="nvidia-smi probably hangs too: see the kernel log"))

    async def _read(self) -> tuple[int, str]:
        begun = self._clock.monotonic()
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._thread, self._look, begun)
        except AcceleratorsUnavailableError as error:
            answer = self._no(error)
        self._page = (self._clock.monotonic(), *answer)
        return answer

    def _look(self, begun: float) -> tuple[int, str]:
        """In the thread of the library."""
        if self._reader is None:
            self._reader = self._open()
            self._source = self._reader.name
        try:
            reading = self._reader.read()
        except AcceleratorsUnavailableError:
            reader, self._reader = self._reader, None  # another library may be the one to ask next
            reader.close()
            raise
        around = self._around(self._clock.monotonic() - begun)
        if self._said:
            self._said = ""
            log.get("agent").info("read_again", source=self._source, devices=len(reading.devices))
        return 200, pages.exposition_page(reading, self._ledger, around, self._clock.now())

    def _no(self, error: OutriderError) -> tuple[int, str]:
        """What cannot be read is said in the log once, and on the page as comments with a 503."""
        if error.message != self._said:
            self._said = error.message
            log.get("agent").warning("cannot_read", error=error.message, hint=error.hint)
        told = "".join(f"# {line}\n" for line in (error.message, error.hint) if line)
        return 503, told + pages.agent_lines(self._around(0.0), up=False)

    def _around(self, seconds: float) -> pages.AgentInfo:
        return pages.AgentInfo(self._node, self._source, metadata.version("outrider"), seconds)

    # --- XIDs -----------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Hear XIDs until cancelled. The first look opens the library; later ones are the pages' business."""
        await self.page()
        listening = False
        while True:
            heard = await asyncio.get_running_loop().run_in_executor(self._thread, self._ear)
            for xid in heard or ():
                self._note(xid)
            if heard is None:
                if listening or self._page is None or self._clock.monotonic() - self._page[0] > RELOOK.total_seconds():
                    self._page = None
                    await self.page()  # listens anew to what is there now
                await asyncio.sleep(REST.total_seconds())
            listening = heard is not None

    def _ear(self) -> list[Xid] | None:
        return None if self._reader is None else self._reader.wait(LISTEN)

    def _note(self, xid: Xid) -> None:
        self._ledger.add(xid)
        self.xids.add(xid)
        self._page = None  # the next page tells of it
        log.get("agent").warning("xid", code=xid.code, device=xid.device.uuid, pci=xid.device.pci)

    async def close(self) -> None:
        """Let go of the library, unless it hangs."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
        elif self._reader is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._reader.close)
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self.kernel is not None:
            self.kernel.close()


def application(agent: Agent) -> web.Application:
    """The doors of an agent."""
    app = web.Application()

    async def metrics(_: web.Request) -> web.Response:
        status, text = await agent.page()
        return web.Response(status=status, body=text.encode(), headers={"Content-Type": _TEXT})

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def doors(_: web.Request) -> web.Response:
        return web.Response(text="outrider agent: /metrics /klog /xids /healthz\n")

    app.router.add_get("/", doors)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/klog", partial(_records, agent, "klog"))
    app.router.add_get("/xids", partial(_records, agent, "xids"))
    app.cleanup_ctx.append(partial(_listening, agent))
    return app


async def _records(agent: Agent, door: str, request: web.Request) -> web.Response:
    after = request.query.get("after", "")
    if after and not after.isdecimal():
        return web.Response(status=400, text=f"after={after} is no sequence number\n")
    if door == "klog" and agent.kernel is None:
        return web.Response(status=404, text="this agent reads no kernel log: see --kmsg\n")
    records = agent.xids if door == "xids" or agent.kernel is None else agent.kernel
    try:
        told = await asyncio.to_thread(records.after, int(after) if after else None)
    except OSError as error:
        said = f"the kernel log cannot be read: {error.strerror}; reading /dev/kmsg needs CAP_SYSLOG\n"
        return web.Response(status=503, text=said)
    headers = {"Boot-Id": told.boot_id, "Boot-Time": told.boot_time}
    return web.Response(text=told.text, headers={name: value for name, value in headers.items() if value})


async def _listening(agent: Agent, _: web.Application) -> AsyncIterator[None]:
    task = asyncio.create_task(agent.listen(), name="listen for XIDs")
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await agent.close()


@asynccontextmanager
async def serving(agent: Agent, host: str, port: int) -> AsyncIterator[str]:
    """Serve an agent; yields its address. Raises UnavailableError when the port is taken."""
    runner = web.AppRunner(application(agent), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise UnavailableError(f"port {port} on {host} is taken", hint="choose another with --port") from error
        found = runner.addresses[0]
        yield f"http://{found[0]}:{found[1]}"
    finally:
        await runner.cleanup()
