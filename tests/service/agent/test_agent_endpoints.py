"""HTTP endpoints of an agent with scripted readers: shared reads, a driver that hangs, no kernel log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

pytest.importorskip("pynvml", reason="missing: nvidia-ml-py")

from collectors.accelerators.exposition import AgentInfo, exposition_page
from collectors.accelerators.processes import Owner, owner
from collectors.accelerators.snapshot import (
    AcceleratorSnapshot,
    AcceleratorsUnavailableError,
    Device,
    DeviceName,
    Instance,
    Process,
    Xid,
    XidLedger,
)
from collectors.exposition.parser import Parser
from collectors.logs.kernel_file import KernelFile
from outrider.clock import ManualClock, SystemClock
from outrider.errors import UnavailableError
from service.agent import server as agents
from service.agent.device_reader import opener
from service.agent.logs import XidRecords

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
NAME = DeviceName("GPU-a", 0, 'odd "model"\\', "00000000:3B:00.0", 0)
READING = AcceleratorSnapshot("580.95.05", (Device(NAME, {"DCGM_FI_DEV_GPU_TEMP": 45.0}),))


class Scripted:
    """A library that waits for ``go`` before each read, and counts its reads."""

    name = "scripted"

    def __init__(self, *, blocked: bool = False) -> None:
        self.go = threading.Event()
        if not blocked:
            self.go.set()
        self.reads = 0
        self.closed = False
        self.error: AcceleratorsUnavailableError | None = None

    def read(self) -> AcceleratorSnapshot:
        self.reads += 1
        self.go.wait(20)
        if self.error is not None:
            raise self.error
        return READING

    def wait(self, limit: timedelta) -> list[Xid] | None:
        del limit
        return None

    def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def served(reader: Scripted, kernel: KernelFile | None = None) -> AsyncIterator[tuple[agents.Agent, object]]:
    agent = agents.Agent(lambda: reader, SystemClock(), "node-1", kernel)
    async with agents.serving(agent, "127.0.0.1", 0) as url, aiohttp.ClientSession() as session:

        async def get(path: str) -> tuple[int, str]:
            async with session.get(f"{url}{path}") as response:
                return response.status, await response.text()

        yield agent, get


def test_concurrent_requests_share_one_read() -> None:
    async def scene() -> None:
        reader = Scripted(blocked=True)
        async with served(reader) as (_, get):
            requests = [asyncio.create_task(get("/metrics")) for _ in range(5)]
            await asyncio.sleep(0)
            reader.go.set()
            responses = await asyncio.gather(*requests)
            assert {status for status, _ in responses} == {200}
            assert len(set(responses)) == 1
            await get("/metrics")
            assert reader.reads == 1
        assert reader.closed

    asyncio.run(scene())


def test_a_driver_that_hangs_does_not_block_other_endpoints(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(agents, "READ_TIMEOUT", timedelta(milliseconds=50))

    async def scene() -> None:
        reader = Scripted(blocked=True)
        async with served(reader) as (agent, get):
            status, text = await get("/metrics")
            assert status == 503
            assert text.startswith("# the driver has not responded for 0.05 s\n# nvidia-smi probably hangs too")
            assert await get("/xids") == (200, "")
            assert await get("/healthz") == (200, "ok\n")
            assert reader.reads == 1
            reader.go.set()
            assert agent._reading is not None
            await agent._reading
            assert (await get("/metrics"))[0] == 200

    asyncio.run(scene())


def test_each_endpoint_reports_its_own_read_error(tmp_path) -> None:
    async def scene() -> None:
        reader = Scripted()
        reader.error = AcceleratorsUnavailableError("no NVIDIA device can be read: gone", hint="modprobe nvidia")
        async with served(reader, KernelFile(tmp_path / "kmsg")) as (_, get):
            status, text = await get("/metrics")
            assert (status, text.splitlines()[:2]) == (
                503,
                ["# no NVIDIA device can be read: gone", "# modprobe nvidia"],
            )
            assert Parser().parse(text.encode()).samples == 2  # the page reports that the source is down
            status, text = await get("/klog")
            assert status == 503
            assert text.startswith("the kernel log cannot be read: No such file or directory; reading /dev/kmsg needs")
            (tmp_path / "kmsg").write_text("3,1,5,-;hello\n")
            assert await get("/klog") == (200, "3,1,5,-;hello\n")
            assert (await get("/nowhere"))[0] == 404
        async with served(Scripted()) as (_, get):
            assert await get("/klog") == (404, "this agent does not serve the kernel log: see --kmsg\n")

    asyncio.run(scene())


def test_a_library_that_cannot_be_opened_is_retried() -> None:
    tries = []

    def open_reader() -> Scripted:
        tries.append(1)
        if len(tries) == 1:
            raise AcceleratorsUnavailableError("not yet")
        return Scripted()

    async def scene() -> None:
        agent = agents.Agent(open_reader, ManualClock(AT), "node-1", None)
        assert (await agent.page())[0] == 503
        agent._page = None
        assert (await agent.page())[0] == 200
        await agent.close()

    asyncio.run(scene())


def test_a_reader_that_fails_is_closed_and_another_is_opened() -> None:
    first, second = Scripted(), Scripted()
    first.error = AcceleratorsUnavailableError("the host engine has gone")
    waiting = [first, second]

    async def scene() -> None:
        agent = agents.Agent(lambda: waiting.pop(0), ManualClock(AT), "node-1", None)
        status, text = await agent.page()
        assert (status, first.closed) == (503, True)
        assert 'outrider_agent_up{source="scripted"' in text
        agent._page = None
        assert (await agent.page())[0] == 200
        assert waiting == []
        await agent.close()

    asyncio.run(scene())


def test_auto_falls_back_to_nvml_without_dcgm(monkeypatch) -> None:
    def none(*_: object) -> None:
        raise AcceleratorsUnavailableError("no bindings")

    monkeypatch.setattr("service.agent.device_reader.Dcgm", none)
    assert opener("auto", SystemClock())().name == "nvml"
    with pytest.raises(UnavailableError, match="no bindings"):
        opener("dcgm", SystemClock())()


# --- the page and the records, without HTTP ---------------------------------------------------------


def test_the_parser_reads_a_page_with_odd_device_names() -> None:
    parts = (Instance(7, "MIG-x", "1g.10gb", {"DCGM_FI_DEV_FB_USED": 1.5}),)
    processes = (Process(4711, 2.0**31, 7), Process(4712, None))
    snapshot = AcceleratorSnapshot(
        "580", (Device(NAME, {"DCGM_FI_DEV_GPU_TEMP": 45.0}, parts, processes),), (DeviceName("GPU-b", 1),)
    )
    ledger = XidLedger()
    ledger.add(Xid(AT - timedelta(minutes=6), NAME, 31))
    ledger.add(Xid(AT, NAME, 79))
    owners = {4711: Owner("0a1b2c3d-0000-1111-2222-333344445555", "c" * 64)}
    text = exposition_page(snapshot, ledger, AgentInfo("node-1", "nvml", "1", 0.25), AT, owners.get)
    page = Parser().parse(text.encode())
    rows = {
        (series.name, *(series.labels.get(label, "") for label in ("UUID", "GPU_I_ID", "xid"))): value
        for series, value in zip(page.layout.series, page.values, strict=True)
    }
    assert rows["DCGM_FI_DEV_GPU_TEMP", "GPU-a", "", ""] == rows["DCGM_FI_DEV_GPU_TEMP", "GPU-a", "7", ""] == 45
    assert rows["DCGM_FI_DEV_FB_USED", "GPU-a", "7", ""] == 1.5
    assert rows["DCGM_EXP_XID_ERRORS_COUNT", "GPU-a", "", "79"] == 1
    assert ("DCGM_EXP_XID_ERRORS_COUNT", "GPU-a", "", "31") not in rows  # outside of the window
    assert rows["outrider_agent_gpu_lost", "GPU-b", "", ""] == 1
    assert rows["outrider_agent_process_memory_bytes", "GPU-a", "7", ""] == 2**31
    process = next(s.labels for s in page.layout.series if s.name == "outrider_agent_process_memory_bytes")
    assert process["pod_uid"] == owners[4711].pod_uid
    assert process["modelName"] == NAME.model
    assert ("DCGM_FI_DEV_POWER_USAGE", "GPU-a", "", "") not in rows


@pytest.mark.parametrize(
    ("cgroup", "pod", "container"),
    [
        (
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_0000_1111_2222_333344445555"
                f".slice/cri-containerd-{'a1' * 32}.scope\n"
            ),
            "0a1b2c3d-0000-1111-2222-333344445555",
            "a1" * 32,
        ),
        (
            f"11:devices:/kubepods/besteffort/pod0a1b2c3d-0000-1111-2222-333344445555/{'b2' * 32}\n0::/\n",
            "0a1b2c3d-0000-1111-2222-333344445555",
            "b2" * 32,
        ),
        (f"0::/system.slice/docker-{'c3' * 32}.scope\n", "", "c3" * 32),
        ("0::/user.slice/user-0.slice/session-1.scope\n", "", ""),
    ],
)
def test_the_cgroup_of_a_process_identifies_its_pod_and_container(tmp_path, cgroup, pod, container) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(cgroup)
    assert owner(7, tmp_path) == Owner(pod, container)
    assert owner(8, tmp_path) is None


def test_times_of_xid_records_count_from_the_start_of_the_agent() -> None:
    clock = ManualClock(AT)
    records = XidRecords(clock)
    records.add(Xid(AT + timedelta(seconds=2), NAME, 79))
    records.add(Xid(AT + timedelta(seconds=3), NAME, 94, 3))
    response = records.after(None)
    assert response.boot_time == "2026-11-21T12:00:00Z"
    assert response.text.splitlines() == [
        "3,0,2000000,-,source=nvml;NVRM: GPU at PCI:0000:3b:00: GPU-a",
        "3,1,2000000,-,source=nvml;NVRM: Xid (PCI:0000:3b:00): 79, uuid=GPU-a",
        "3,2,3000000,-,source=nvml;NVRM: Xid (PCI:0000:3b:00 GPU-I:03): 94, uuid=GPU-a",
    ]
    assert records.after(2).text == ""
    assert XidRecords(clock).after(None).boot_id != response.boot_id
