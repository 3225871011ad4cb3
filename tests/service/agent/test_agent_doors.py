"""The doors of an agent over readers that do what a test says: shared looks, a driver that hangs, no kernel log."""

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
    """A library that waits for ``go`` before each answer, and counts how often it was asked."""

    name = "scripted"

    def __init__(self, *, held: bool = False) -> None:
        self.go = threading.Event()
        if not held:
            self.go.set()
        self.looks = 0
        self.closed = False
        self.error: AcceleratorsUnavailableError | None = None

    def read(self) -> AcceleratorSnapshot:
        self.looks += 1
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
async def doors(reader: Scripted, kernel: KernelFile | None = None) -> AsyncIterator[tuple[agents.Agent, object]]:
    one = agents.Agent(lambda: reader, SystemClock(), "node-1", kernel)
    async with agents.serving(one, "127.0.0.1", 0) as url, aiohttp.ClientSession() as session:

        async def get(path: str) -> tuple[int, str]:
            async with session.get(f"{url}{path}") as answer:
                return answer.status, await answer.text()

        yield one, get


def test_everybody_who_asks_at_once_gets_the_same_look() -> None:
    async def scene() -> None:
        reader = Scripted(held=True)
        async with doors(reader) as (_, get):
            asked = [asyncio.create_task(get("/metrics")) for _ in range(5)]
            await asyncio.sleep(0)
            reader.go.set()
            answers = await asyncio.gather(*asked)
            assert {status for status, _ in answers} == {200}
            assert len(set(answers)) == 1
            await get("/metrics")
            assert reader.looks == 1
        assert reader.closed

    asyncio.run(scene())


def test_a_driver_that_hangs_holds_up_no_other_door(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(agents, "PATIENCE", timedelta(milliseconds=50))

    async def scene() -> None:
        reader = Scripted(held=True)
        async with doors(reader) as (one, get):
            status, text = await get("/metrics")
            assert status == 503
            assert text.startswith("# the driver has not answered for 0.05 s\n# nvidia-smi probably hangs too")
            assert await get("/xids") == (200, "")
            assert await get("/healthz") == (200, "ok\n")
            assert reader.looks == 1
            reader.go.set()
            assert one._reading is not None
            await one._reading
            assert (await get("/metrics"))[0] == 200

    asyncio.run(scene())


def test_what_cannot_be_read_is_a_sentence_at_its_own_door(tmp_path) -> None:
    async def scene() -> None:
        reader = Scripted()
        reader.error = AcceleratorsUnavailableError("no NVIDIA device can be read: gone", hint="modprobe nvidia")
        async with doors(reader, KernelFile(tmp_path / "kmsg")) as (_, get):
            status, text = await get("/metrics")
            assert (status, text.splitlines()[:2]) == (
                503,
                ["# no NVIDIA device can be read: gone", "# modprobe nvidia"],
            )
            assert Parser().parse(text.encode()).samples == 2  # a page all the same: that it is down
            status, text = await get("/klog")
            assert status == 503
            assert text.startswith("the kernel log cannot be read: No such file or directory; reading /dev/kmsg needs")
            (tmp_path / "kmsg").write_text("3,1,5,-;hello\n")
            assert await get("/klog") == (200, "3,1,5,-;hello\n")
            assert (await get("/nowhere"))[0] == 404
        async with doors(Scripted()) as (_, get):
            assert await get("/klog") == (404, "this agent reads no kernel log: see --kmsg\n")

    asyncio.run(scene())


def test_a_library_that_cannot_be_opened_is_tried_again() -> None:
    tries = []

    def open_reader() -> Scripted:
        tries.append(1)
        if len(tries) == 1:
            raise AcceleratorsUnavailableError("not yet")
        return Scripted()

    async def scene() -> None:
        one = agents.Agent(open_reader, ManualClock(AT), "node-1", None)
        assert (await one.page())[0] == 503
        one._page = None
        assert (await one.page())[0] == 200
        await one.close()

    asyncio.run(scene())


def test_a_reader_that_fails_gives_way_to_whichever_can_be_opened_next() -> None:
    first, second = Scripted(), Scripted()
    first.error = AcceleratorsUnavailableError("the host engine has gone")
    waiting = [first, second]

    async def scene() -> None:
        one = agents.Agent(lambda: waiting.pop(0), ManualClock(AT), "node-1", None)
        status, text = await one.page()
        assert (status, first.closed) == (503, True)
        assert 'outrider_agent_up{source="scripted"' in text
        one._page = None
        assert (await one.page())[0] == 200
        assert waiting == []
        await one.close()

    asyncio.run(scene())


def test_auto_falls_back_to_nvml_where_there_is_no_dcgm(monkeypatch) -> None:
    def none(*_: object) -> None:
        raise AcceleratorsUnavailableError("no bindings")

    monkeypatch.setattr("service.agent.device_reader.Dcgm", none)
    assert opener("auto", SystemClock())().name == "nvml"
    with pytest.raises(UnavailableError, match="no bindings"):
        opener("dcgm", SystemClock())()


# --- the page and the records, without a door -------------------------------------------------------


def test_a_page_is_read_by_the_parser_whatever_a_device_is_called() -> None:
    parts = (Instance(7, "MIG-x", "1g.10gb", {"DCGM_FI_DEV_FB_USED": 1.5}),)
    processes = (Process(4711, 2.0**31, 7), Process(4712, None))
    reading = AcceleratorSnapshot(
        "580", (Device(NAME, {"DCGM_FI_DEV_GPU_TEMP": 45.0}, parts, processes),), (DeviceName("GPU-b", 1),)
    )
    ledger = XidLedger()
    ledger.add(Xid(AT - timedelta(minutes=6), NAME, 31))
    ledger.add(Xid(AT, NAME, 79))
    owners = {4711: Owner("0a1b2c3d-0000-1111-2222-333344445555", "c" * 64)}
    text = exposition_page(reading, ledger, AgentInfo("node-1", "nvml", "1", 0.25), AT, owners.get)
    told = Parser().parse(text.encode())
    rows = {
        (one.name, one.labels.get("UUID", ""), one.labels.get("GPU_I_ID", ""), one.labels.get("xid", "")): value
        for one, value in zip(told.layout.series, told.values, strict=True)
    }
    assert rows["DCGM_FI_DEV_GPU_TEMP", "GPU-a", "", ""] == rows["DCGM_FI_DEV_GPU_TEMP", "GPU-a", "7", ""] == 45
    assert rows["DCGM_FI_DEV_FB_USED", "GPU-a", "7", ""] == 1.5
    assert rows["DCGM_EXP_XID_ERRORS_COUNT", "GPU-a", "", "79"] == 1
    assert ("DCGM_EXP_XID_ERRORS_COUNT", "GPU-a", "", "31") not in rows  # outside of the window
    assert rows["outrider_agent_gpu_lost", "GPU-b", "", ""] == 1
    assert rows["outrider_agent_process_memory_bytes", "GPU-a", "7", ""] == 2**31
    process = next(one.labels for one in told.layout.series if one.name == "outrider_agent_process_memory_bytes")
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
def test_a_process_is_found_in_its_pod_by_its_cgroup(tmp_path, cgroup, pod, container) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(cgroup)
    assert owner(7, tmp_path) == Owner(pod, container)
    assert owner(8, tmp_path) is None


def test_records_of_xids_count_from_the_start_of_the_agent() -> None:
    clock = ManualClock(AT)
    records = XidRecords(clock)
    records.add(Xid(AT + timedelta(seconds=2), NAME, 79))
    records.add(Xid(AT + timedelta(seconds=3), NAME, 94, 3))
    told = records.after(None)
    assert told.boot_time == "2026-11-21T12:00:00Z"
    assert told.text.splitlines() == [
        "3,0,2000000,-,source=nvml;NVRM: GPU at PCI:0000:3b:00: GPU-a",
        "3,1,2000000,-,source=nvml;NVRM: Xid (PCI:0000:3b:00): 79, uuid=GPU-a",
        "3,2,3000000,-,source=nvml;NVRM: Xid (PCI:0000:3b:00 GPU-I:03): 94, uuid=GPU-a",
    ]
    assert records.after(2).text == ""
    assert XidRecords(clock).after(None).boot_id != told.boot_id
