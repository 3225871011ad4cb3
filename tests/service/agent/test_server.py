"""The agent of a GPU node end to end: a process that reads a driver and is read by Outrider."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from collectors.events.deduplication import EventDeduplicator
from outrider.clock import SystemClock
from outrider.model import EntityKind, EntityRef, EventKind
from service.config.settings import Settings
from service.sources import factory
from tests.support.waiting import until

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from nvml_fake import Driver, build

FIRST, SECOND = "GPU-00000000-1111-2222-3333-444444444444", "GPU-00000001-1111-2222-3333-444444444444"
NODE = EntityRef("default", EntityKind.NODE, None, "node-1")
LIMIT = 20.0


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(library, tmp_path):
    driver = Driver(library, tmp_path / "state")
    driver.set(gpus=2, **{"0.gpm": 0, "1.gpm": 0})
    return driver


class Agent:
    """``outrider agent`` on a free port, with a pipe for its kernel log."""

    def __init__(self, driver: Driver, folder: Path, *more: str) -> None:
        self.kmsg = folder / "kmsg"
        os.mkfifo(self.kmsg)
        self._writer = os.open(self.kmsg, os.O_RDWR)
        command = [
            *(sys.executable, "-m", "service.cli", "agent", "--host", "127.0.0.1", "--port", "0"),
            *("--node", "node-1", "--source", "nvml", "--kmsg", str(self.kmsg), *more),
        ]
        self.log = (folder / "agent.log").open("w+")
        self._process = subprocess.Popen(command, env=driver.environment, stdout=self.log, stderr=self.log, text=True)
        self.url = self._address()

    def _address(self) -> str:
        def logged() -> re.Match[str] | None:
            text = Path(self.log.name).read_text()
            assert self._process.poll() is None, text
            return re.search(r"agent of node-1: (http://\S+)/metrics", text)

        match = until(logged, "the agent serves its page", seconds=LIMIT)
        assert match is not None
        return match[1]

    def kernel(self, sequence: int, message: str, ago: float = 1.0, priority: int = 3) -> None:
        since_boot = time.clock_gettime(time.CLOCK_REALTIME) - _boot() - ago
        os.write(self._writer, f"{priority},{sequence},{round(since_boot * 1e6)},-;{message}\n".encode())

    def get(self, path: str, **params: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", params=params, timeout=LIMIT)

    def until(self, path: str, text: str) -> str:
        """Returns the response of an endpoint once it contains this text."""

        def read() -> str:
            response = self.get(path).text
            return response if text in response else ""

        return until(read, f"{path} contains {text}", seconds=LIMIT)

    def end(self) -> int:
        self._process.terminate()
        code = self._process.wait(timeout=LIMIT)
        os.close(self._writer)
        self.log.close()
        return code


def _boot() -> float:
    return next(
        float(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime ")
    )


@pytest.fixture
def agent(driver, tmp_path):
    process = Agent(driver, tmp_path)
    yield process
    assert process.end() == 0


def test_the_page_matches_that_of_dcgm_exporter(agent) -> None:
    response = agent.get("/metrics")
    assert (response.status_code, response.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    labels = (
        f'gpu="1",UUID="{SECOND}",pci_bus_id="00000000:3C:00.0",device="nvidia1",'
        'modelName="NVIDIA H100 80GB HBM3",Hostname="node-1",DCGM_FI_DRIVER_VERSION="580.95.05"'
    )
    lines = response.text.splitlines()
    assert f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 45" in lines
    assert f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 312.5" in lines
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter" in lines
    assert f'DCGM_FI_DEV_XID_ERRORS{{{labels},err_code="0"}} 0' in lines
    assert f'DCGM_EXP_XID_ERRORS_COUNT{{{labels},window_size_in_ms="300000"}} 0' in lines
    assert any(line.startswith('outrider_agent_up{source="nvml",') and line.endswith(" 1") for line in lines)


@pytest.mark.slow
def test_two_endpoints_report_an_xid_with_its_time_and_device(driver, agent) -> None:
    agent.get("/metrics")
    before = SystemClock().now()
    driver.xid(1, 94, 7)
    records = agent.until("/xids", "Xid")
    assert "NVRM: GPU at PCI:0000:3c:00: GPU-00000001" in records
    assert ",source=nvml;NVRM: Xid (PCI:0000:3c:00 GPU-I:07): 94, uuid=GPU-00000001" in records
    agent.until("/metrics", 'xid="94"} 1')
    assert agent.get("/xids", after="0").text.count("\n") == 1
    assert agent.get("/xids", after="1").text == ""
    assert agent.get("/xids").headers["Boot-Id"] == agent.get("/xids", after="1").headers["Boot-Id"]
    assert agent.get("/xids", after="x").status_code == 400
    assert SystemClock().now() - before < timedelta(seconds=LIMIT)


@pytest.mark.slow
def test_the_kernel_log_is_served_record_by_record(agent) -> None:
    agent.kernel(7, "NVRM: loading")
    agent.kernel(8, "what a program wrote", priority=14)
    agent.kernel(9, "next")
    response = agent.get("/klog")
    assert [line.split(",")[1] for line in response.text.splitlines()] == ["7", "9"]
    assert response.headers["Boot-Id"]
    assert response.headers["Boot-Time"].endswith("Z")
    assert agent.get("/klog", after="7").text.endswith(";next\n")
    assert agent.get("/klog", after="9").text == ""
    agent.kernel(10, "later")
    assert agent.get("/klog", after="9").text.endswith(";later\n")
    assert len(agent.get("/klog").text.splitlines()) == 3


@pytest.mark.slow
def test_the_agent_survives_a_lost_device_and_a_reloaded_driver(driver, agent) -> None:
    assert FIRST in agent.get("/metrics").text
    driver.set(**{"1.lost": 1})
    agent.until("/metrics", f'outrider_agent_gpu_lost{{gpu="1",UUID="{SECOND}"')

    def left() -> bool:
        lines = agent.get("/metrics").text.splitlines()
        return not any(SECOND in line for line in lines if line.startswith("DCGM_"))

    until(left, "the lost device has no values", seconds=LIMIT)
    driver.set(driver=0)
    page = agent.until("/metrics", "# no NVIDIA device can be read: the NVIDIA driver")
    assert 'outrider_agent_up{source="nvml"' in page
    assert agent.get("/metrics").status_code == 503
    driver.set(driver=1, **{"1.lost": None})
    assert SECOND in agent.until("/metrics", "DCGM_FI_DEV_GPU_TEMP")
    driver.xid(0, 31)
    assert "Xid (PCI:0000:3b:00): 31" in agent.until("/xids", "Xid")


def test_one_fault_at_three_endpoints_of_an_agent_is_one_event(driver, agent) -> None:
    settings = Settings.model_validate(
        {
            "collect": {
                "targets": [
                    {
                        "name": "gpus-node-1",
                        "adapter": "dcgm",
                        "url": f"{agent.url}/metrics",
                        "entity": {"kind": "node", "name": "node-1"},
                    }
                ]
            },
            "events": [
                {"type": "kernel_log", "url": f"{agent.url}/klog", "node": "node-1"},
                {"type": "kernel_log", "name": "nvml", "url": f"{agent.url}/xids", "node": "node-1"},
            ],
        }
    )
    gpu = EntityRef("default", EntityKind.GPU, None, SECOND)

    async def scene() -> None:
        async with contextlib.AsyncExitStack() as stack:
            source = factory.source(settings, SystemClock())
            stack.push_async_callback(source.close)
            deduplicator = EventDeduplicator()  # as in the cycle
            first = await source.collect(SystemClock().now())
            gpus = next(batch for batch in first.batches if batch.kind is EntityKind.GPU)
            assert {entity.name for entity in gpus.entities} == {FIRST, SECOND}
            assert {one.name: one.error for one in source.health if one.error} == {}
            agent.kernel(1, "NVRM: Xid (PCI:0000:3c:00): 79, pid=7, name=python3, GPU has fallen off the bus.", 0.2)
            driver.xid(1, 79)
            await asyncio.to_thread(agent.until, "/metrics", 'xid="79"} 1')
            collected = await source.collect(SystemClock().now())
            (event,) = deduplicator.deduplicate(collected.events)
            assert (event.kind, event.entity, event.code) == (EventKind.XID, gpu, "79")
            assert event.attributes["sources"] == "kernel_log, nvml, gpus-node-1"
            assert event.attributes["pid"] == "7"
            collected = await source.collect(SystemClock().now())
            assert deduplicator.deduplicate(collected.events) == ()

    asyncio.run(scene())


@pytest.mark.slow
def test_once_prints_the_page_or_an_error(driver) -> None:
    command = [sys.executable, "-m", "service.cli", "agent", "--once", "--node", "n", "--source", "nvml"]
    result = subprocess.run(command, env=driver.environment, capture_output=True, text=True, check=True)
    assert "DCGM_FI_DEV_GPU_TEMP{" in result.stdout
    driver.set(driver=0)
    gone = subprocess.run(command, env=driver.environment, capture_output=True, text=True, check=False)
    assert gone.returncode == 3
    assert gone.stderr.startswith("outrider: no NVIDIA device can be read: the NVIDIA driver is not loaded\n  modprobe")


@pytest.mark.slow
def test_a_port_in_use_is_an_error(driver, agent) -> None:
    port = agent.url.rpartition(":")[2]
    command = [sys.executable, "-m", "service.cli", "agent", "--host", "127.0.0.1", "--port", port, "--source", "nvml"]
    result = subprocess.run(command, env=driver.environment, capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert f"port {port} on 127.0.0.1 is in use" in result.stderr


def test_the_agent_imports_no_heavy_packages(driver) -> None:
    heavy = "{'pandas', 'sklearn', 'scipy', 'sqlalchemy', 'streamlit', 'fastapi', 'prophet'}"
    program = f"import service.cli.ops.agent, sys; print(sorted({heavy} & sys.modules.keys()))"
    result = subprocess.run(
        [sys.executable, "-c", program], env=driver.environment, capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
