"""NVML through NVIDIA's binding, above a scripted library with NVIDIA's C interface."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from nvml_fake import Driver, Probe, build

FIRST, SECOND = "GPU-00000000-1111-2222-3333-444444444444", "GPU-00000001-1111-2222-3333-444444444444"
LOST, RESET_REQUIRED, NOT_SUPPORTED, NO_PERMISSION, UNKNOWN = 15, 16, 3, 4, 999


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(library, tmp_path):
    return Driver(library, tmp_path / "state")


@pytest.fixture
def probe(driver):
    one = Probe(driver.environment)
    yield one
    assert one.close() == 0


def one(reading, place=0):
    return reading["devices"][place]


# --- values ---------------------------------------------------------------------------------------


def test_a_device_reports_the_metrics_and_units_of_dcgm_exporter(driver, probe) -> None:
    driver.set(**{"0.field.82": 61, "0.field.38": 5, "0.field.138": 7, "0.field.230": 2})
    reading = probe.read()
    assert reading["driver"] == "580.95.05"
    device = one(reading)
    assert device["name"] == {
        "uuid": FIRST, "index": 0, "model": "NVIDIA H100 80GB HBM3", "pci": "00000000:3B:00.0", "minor": 0,
    }  # fmt: skip
    reported = device["values"]
    assert reported == reported | {
        "DCGM_FI_DEV_GPU_TEMP": 45.0,
        "DCGM_FI_DEV_MEMORY_TEMP": 61.0,
        "DCGM_FI_DEV_POWER_USAGE": 312.5,  # W of mW
        "DCGM_FI_DEV_POWER_MGMT_LIMIT": 700.0,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 9_000_000.0,  # mJ
        "DCGM_FI_DEV_SM_CLOCK": 1980.0,
        "DCGM_FI_DEV_MEM_CLOCK": 2619.0,
        "DCGM_FI_DEV_GPU_UTIL": 87.0,
        "DCGM_FI_DEV_FB_USED": 1024.0,  # MiB
        "DCGM_FI_DEV_FB_RESERVED": 512.0,
        "DCGM_FI_DEV_FB_FREE": 81920.0 - 1024 - 512,
        "DCGM_FI_DEV_POWER_VIOLATION": 1000.0,
        "DCGM_FI_DEV_THERMAL_VIOLATION": 2000.0,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 4.0,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0.0,
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 1.0,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3.0,
        "DCGM_FI_DEV_PCIE_LINK_WIDTH": 16.0,
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 5.0,
        "DCGM_FI_PROF_NVLINK_TX_BYTES": 7 * 1024.0,
        "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": 2.0,
    }
    driver.set(**{"0.temperature": 91, "0.ecc.double.volatile": 2, "0.rows.pending": 1})
    reported = one(probe.read())["values"]
    assert (reported["DCGM_FI_DEV_GPU_TEMP"], reported["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"]) == (91.0, 2.0)
    assert reported["DCGM_FI_DEV_ROW_REMAP_PENDING"] == 1.0


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, 2, 17, 20, 21, 25, 27, UNKNOWN])
@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("nvmlDeviceGetPowerUsage", {"DCGM_FI_DEV_POWER_USAGE"}),
        ("nvmlDeviceGetUtilizationRates", {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL"}),
        (
            "nvmlDeviceGetMemoryInfo_v2",
            {"DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_RESERVED"},
        ),
        ("nvmlDeviceGetComputeRunningProcesses_v3", set()),
    ],
)
def test_unsupported_values_are_absent_and_the_rest_present(driver, probe, function, names, code) -> None:
    whole = set(one(probe.read())["values"])
    driver.set(**{f"fail.{function}": code})
    assert set(one(probe.read())["values"]) == whole - names


@pytest.mark.parametrize("function", ["nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"])
def test_a_driver_with_either_call_for_the_temperature_reports_it(driver, probe, function) -> None:
    driver.set(**{f"fail.{function}": 13, "0.temperature": 66})  # no such function
    assert one(probe.read())["values"]["DCGM_FI_DEV_GPU_TEMP"] == 66.0


def test_processes_are_named_with_their_memory(driver, probe) -> None:
    driver.set(**{"0.pid": 4711})
    assert one(probe.read())["processes"] == [{"pid": 4711, "memory_bytes": 2048.0 * 2**20, "instance": None}]


def test_profiling_values_start_with_the_second_reading(driver, probe) -> None:
    driver.set(**{"0.gpm.2": 55.5, "0.gpm.10": 30, "0.gpm.5": 20, "0.gpm.20": 3, "0.gpm.21": 50_000})
    assert "DCGM_FI_PROF_SM_ACTIVE" not in one(probe.read())["values"]
    for _ in range(3):
        reported = one(probe.read())["values"]
        assert reported["DCGM_FI_PROF_SM_ACTIVE"] == pytest.approx(0.555)
        assert reported["DCGM_FI_PROF_DRAM_ACTIVE"] == pytest.approx(0.3)
        assert "DCGM_FI_PROF_SM_OCCUPANCY" not in reported
        assert reported["DCGM_FI_PROF_PCIE_TX_BYTES"] == 3.0 * 2**20  # bytes per second of MiB per second
        assert reported["DCGM_FI_PROF_PCIE_RX_BYTES"] == 50_000.0 * 2**20
    assert "# TYPE DCGM_FI_PROF_PCIE_RX_BYTES gauge" in probe.page()
    driver.set(**{"0.gpm": 0})
    assert "DCGM_FI_PROF_SM_ACTIVE" in one(probe.read())["values"]  # support is queried once


# --- MIG ------------------------------------------------------------------------------------------


def test_a_mig_instance_has_only_its_own_memory_and_activity(driver, probe) -> None:
    driver.set(gpus=2, **{"1.mig": 2, "1.mig.1.used": 3 * 2**30, "1.mig.1.gpm.2": 40, "1.pid": 9})
    probe.read()
    whole, divided = probe.read()["devices"]
    assert whole["instances"] == []
    assert [(part["number"], part["uuid"][:4], part["profile"]) for part in divided["instances"]] == [
        (7, "MIG-", "1g.10gb"), (8, "MIG-", "1g.10gb"),
    ]  # fmt: skip
    first, second = (part["values"] for part in divided["instances"])
    assert second == {
        "DCGM_FI_DEV_FB_USED": 3072.0,
        "DCGM_FI_DEV_FB_FREE": 9856.0 - 16 - 3072,
        "DCGM_FI_DEV_FB_RESERVED": 16.0,
        "DCGM_FI_PROF_SM_ACTIVE": pytest.approx(0.4),
    }
    assert set(first) == {"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"}
    assert "DCGM_FI_DEV_GPU_UTIL" not in divided["values"]  # MIG does not tell it: absent, not zero
    assert "DCGM_FI_DEV_FB_USED" not in divided["values"]  # that of its parts, or it would count twice
    assert divided["values"]["DCGM_FI_DEV_POWER_USAGE"] == 312.5
    assert divided["processes"][0]["instance"] == 7


def test_device_memory_stays_on_the_device_if_mig_instances_report_none(driver, probe) -> None:
    driver.set(**{"0.mig": 1, "fail.nvmlDeviceGetMigDeviceHandleByIndex": NO_PERMISSION})
    device = one(probe.read())
    assert device["instances"] == []
    assert device["values"]["DCGM_FI_DEV_FB_USED"] == 1024.0


# --- what breaks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["lost", "fail"])
def test_a_device_off_the_bus_is_lost_and_does_not_stop_the_others(driver, probe, how) -> None:
    driver.set(gpus=2)
    assert len(probe.read()["devices"]) == 2
    expected = {"1.lost": 1} if how == "lost" else {"fail.1.nvmlDeviceGetPowerUsage": RESET_REQUIRED}
    driver.set(**expected)
    reading = probe.read()
    assert [device["name"]["uuid"] for device in reading["devices"]] == [FIRST]
    assert [name["uuid"] for name in reading["lost"]] == [SECOND]
    page = probe.page()
    assert SECOND not in "".join(line for line in page.splitlines() if line.startswith("DCGM_"))
    assert f'outrider_agent_gpu_lost{{gpu="1",UUID="{SECOND}"' in page
    driver.set(**dict.fromkeys(expected))
    reading = probe.read()
    assert (len(reading["devices"]), reading["lost"]) == (2, [])


def test_a_device_that_was_never_seen_is_not_lost(driver, probe) -> None:
    driver.set(gpus=2, **{"1.lost": 1})
    reading = probe.read()
    assert ([device["name"]["uuid"] for device in reading["devices"]], reading["lost"]) == ([FIRST], [])


def test_a_reloaded_driver_is_read_without_a_restart(driver, probe) -> None:
    driver.set(driver=0)
    assert probe.read()["error"] == "no NVIDIA device can be read: the NVIDIA driver is not loaded"
    driver.set(driver=1)
    assert one(probe.read())["values"]
    driver.set(driver=0)
    expected = probe.read()
    assert expected["error"] == "no NVIDIA device can be read: the NVIDIA driver was unloaded"
    assert expected["hint"] == "the agent resumes as soon as the driver is loaded again"
    assert probe.read()["error"] == "no NVIDIA device can be read: the NVIDIA driver is not loaded"
    assert probe.wait() is None
    driver.set(driver=1, version="590.1")
    assert probe.read()["driver"] == "590.1"
    driver.xid(0, 31)
    assert [xid["code"] for xid in probe.wait()] == [31]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (18, "libnvidia-ml.so.1 and the loaded driver differ in version"),
        (4, "this user has no permission to query the NVIDIA driver"),
        (17, "NVML returned: "),
    ],
)
def test_a_failed_driver_start_gives_one_error_message(driver, probe, code, expected) -> None:
    driver.set(**{"fail.nvmlInitWithFlags": code})
    reading = probe.read()
    assert reading["error"].startswith(f"no NVIDIA device can be read: {expected}")
    assert reading["hint"]
    driver.set(**{"fail.nvmlInitWithFlags": None})
    assert one(probe.read())["values"]


def test_a_missing_library_is_reported(driver, tmp_path) -> None:
    driver.environment["LD_LIBRARY_PATH"] = str(tmp_path)
    one_without = Probe(driver.environment)
    reading = one_without.read()
    one_without.close()
    if "devices" in reading:
        pytest.skip("this machine has NVIDIA's own library")
    assert reading["error"] in {
        "no NVIDIA device can be read: libnvidia-ml.so.1 is not installed on this node",
        "no NVIDIA device can be read: the NVIDIA driver is not loaded",
    }


# --- XIDs -----------------------------------------------------------------------------------------


def test_every_xid_is_received_once_with_its_device(driver, probe) -> None:
    driver.set(gpus=2, **{"1.mig": 1})
    assert probe.wait() is None  # nothing to listen to before the first look
    probe.read()
    assert probe.wait() == []
    driver.xid(0, 79)
    driver.xid(0, 79)
    driver.xid(1, 94, 7)
    received = [xid for _ in range(4) for xid in probe.wait()]
    assert [(xid["device"]["uuid"], xid["code"], xid["instance"]) for xid in received] == [
        (FIRST, 79, None), (FIRST, 79, None), (SECOND, 94, 7),
    ]  # fmt: skip
    page = probe.page().splitlines()
    gauges = [line for line in page if line.startswith("DCGM_FI_DEV_XID_ERRORS{")]
    assert [(line.split('err_code="')[1].split('"')[0], line.rsplit(" ", 1)[1]) for line in gauges] == [
        ("79", "79"), ("94", "94"),
    ]  # fmt: skip
    counts = [line for line in page if line.startswith("DCGM_EXP_XID_ERRORS_COUNT{")]
    assert [(line.split('xid="')[1].split('"')[0], line.rsplit(" ", 1)[1]) for line in counts] == [
        ("79", "2"), ("94", "1"),
    ]  # fmt: skip


def test_event_watching_continues_on_the_remaining_devices(driver, probe) -> None:
    driver.set(gpus=2)
    probe.read()
    driver.xid(1, 79)
    assert [xid["code"] for xid in probe.wait()] == [79]
    driver.set(**{"1.lost": 1, "fail.nvmlEventSetWait_v2": LOST})
    assert probe.wait() == []
    assert probe.wait() is None  # the set that held the lost one is given up
    driver.set(**{"fail.nvmlEventSetWait_v2": None})
    probe.read()
    driver.xid(0, 48)
    assert [xid["code"] for xid in probe.wait()] == [48]


def test_a_driver_without_event_support_is_read(driver, probe) -> None:
    driver.set(**{"fail.nvmlDeviceGetSupportedEventTypes": NOT_SUPPORTED})
    assert one(probe.read())["values"]
    assert probe.wait() == []
