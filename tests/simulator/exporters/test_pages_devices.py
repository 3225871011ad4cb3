"""Pages of devices: dcgm-exporter on three device types, npu-exporter on Ascend."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from outrider.model import EntityKind
from simulator.exporters.targets import Pages, SimulatedTarget, every_target, targets
from simulator.fleet import Fleet
from simulator.journal import JournalSource
from simulator.spec.fleets import PoolSpec
from tests.simulator.small import START, Bent, small_spec, step

Families = dict[str, Metric]


def mixed() -> Fleet:
    """Nodes 0 and 1 with H100, 2 with T4, 3 with Ascend devices; one service on each type except T4."""
    spec = small_spec()
    chat = replace(spec.services[0], replicas=2, ceiling=2, gpu_type=spec.pools[0].gpu_type)
    china = replace(chat, name="china", replicas=1, ceiling=1, gpu_type="Ascend 910B", engine_kind="mindie")
    pools = (
        replace(spec.pools[0], nodes=2),
        PoolSpec("t4", "Tesla T4", 1, gpus_per_node=4),
        PoolSpec("ascend", "Ascend 910B", 1, gpus_per_node=4),
    )
    coarse = replace(spec, pools=pools, services=(chat, china), tick_seconds=5.0, slice_seconds=5.0)
    return Fleet(coarse, seed=3, start=START)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return mixed()


def target(fleet: Fleet, name: str) -> SimulatedTarget:
    return next(one for one in every_target(fleet) if one.name == name)


def read(pages: Pages, name: str) -> Families:
    body = pages.answer(target(pages.fleet, name)).body
    assert body is not None
    return {family.name: family for family in text_string_to_metric_families(body.decode())}


def gpu(fleet: Fleet, number: int) -> str:
    return fleet.gpu_uuid(number)


def test_each_device_type_has_its_exporter(fleet: Fleet) -> None:
    names = [one.name for one in every_target(fleet)]
    assert {"dcgm-node-0", "dcgm-node-2", "npu-node-3"} <= set(names)
    assert "npu-node-3" not in {one.name for one in targets(fleet)}, "no packaged adapter reads it"
    assert "npu-node-3" in {one.name for one in targets(fleet, {"npu_exporter"})}


def test_old_devices_lack_profiling_links_and_remapping(fleet: Fleet) -> None:
    pages = Pages(fleet)
    new, old = read(pages, "dcgm-node-0"), read(pages, "dcgm-node-2")
    lacks = set(new) - set(old)
    assert {name for name in new if "_PROF_" in name} <= lacks
    assert {
        "DCGM_FI_DEV_MEMORY_TEMP",
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
    } <= lacks
    assert {"DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_RETIRED_PENDING"} <= set(old) - set(new)
    assert old["DCGM_FI_DEV_GPU_UTIL"].samples[0].labels["modelName"] == "Tesla T4"


def test_newer_exporters_use_a_lower_case_host_label(fleet: Fleet) -> None:
    pages = Pages(fleet)
    spelt = [
        {
            label
            for label in read(pages, f"dcgm-node-{node}")["DCGM_FI_DEV_GPU_TEMP"].samples[0].labels
            if "ostname" in label
        }
        for node in (0, 2)
    ]
    assert spelt == [{"Hostname"}, {"hostname"}]


def test_t4_families_are_those_of_a_recorded_page(fleet: Fleet) -> None:
    shared = Path(os.environ.get("OUTRIDER_DATA", Path(__file__).parents[4] / "shared"))
    recorded = shared / "pages/dcgm_exporter_t4.txt"
    if not recorded.exists():
        pytest.skip("no recorded pages here")
    real = {family.name: family for family in text_string_to_metric_families(recorded.read_text(encoding="utf-8"))}
    ours = read(Pages(fleet), "dcgm-node-2")
    labeled = {name for name, one in real.items() if one.samples and one.samples[0].labels}
    common = labeled & set(ours)
    assert len(common) >= 15
    for name in common:
        assert ours[name].type == real[name].type, name
        wanted = {"gpu", "UUID", "device", "modelName", "DCGM_FI_DRIVER_VERSION"}
        assert wanted <= set(ours[name].samples[0].labels) & set(real[name].samples[0].labels), name


def write_xid(fleet: Fleet, number: int, code: int) -> None:
    where = fleet.entity(EntityKind.GPU, gpu(fleet, number))
    fleet.journal.write(fleet.at, JournalSource.KERNEL, where, "xid", "NVRM: Xid", xid=str(code))
    fleet.gpus.xid[number] = code


@pytest.mark.slow
def test_an_xid_stays_until_a_driver_reload_and_is_counted_for_five_minutes() -> None:
    fleet = mixed()
    pages = Pages(fleet)
    slot = int(fleet.pods.owner[0])
    assert slot >= 0
    none = [sample.labels for sample in read(pages, "dcgm-node-0")["DCGM_EXP_XID_ERRORS_COUNT"].samples]
    assert all("xid" not in labels and labels["window_size_in_ms"] == "300000" for labels in none)
    step(fleet, 15)
    write_xid(fleet, 0, 31)
    write_xid(fleet, 0, 31)
    fleet.restart(slot)
    step(fleet, 15)
    first = read(pages, "dcgm-node-0")["DCGM_FI_DEV_XID_ERRORS"].samples[0]
    assert (first.value, first.labels["err_code"], first.labels["err_msg"]) == (31, "31", "GPU memory page fault")
    counted = [
        sample for sample in read(pages, "dcgm-node-0")["DCGM_EXP_XID_ERRORS_COUNT"].samples if "xid" in sample.labels
    ]
    assert [(one.labels["xid"], one.labels["UUID"], one.value) for one in counted] == [("31", gpu(fleet, 0), 2)]
    step(fleet, 300)
    assert read(pages, "dcgm-node-0")["DCGM_FI_DEV_XID_ERRORS"].samples[0].value == 31
    later = read(pages, "dcgm-node-0")["DCGM_EXP_XID_ERRORS_COUNT"].samples
    assert all("xid" not in one.labels for one in later)
    off = Bent(fleet, ("nodes", "alive", 0, 0.0))
    step(fleet, 30)
    assert pages.answer(target(fleet, "dcgm-node-0")).status == "timeout"
    off.stop(fleet)
    step(fleet, 15)
    booted = read(pages, "dcgm-node-0")
    assert {sample.value for sample in booted["DCGM_FI_DEV_XID_ERRORS"].samples} == {0.0}
    assert booted["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"].samples[0].value < 1e8


def test_rows_name_the_pod_that_holds_the_device_now() -> None:
    fleet = mixed()
    pages = Pages(fleet)
    before = [sample.labels.get("pod") for sample in read(pages, "dcgm-node-0")["DCGM_FI_DEV_FB_USED"].samples]
    assert before.count(None) == 0
    fleet.pods.cordoned[0] = True
    for slot in range(2):
        fleet.restart(slot)
    step(fleet, 15)
    after = [sample.labels for sample in read(pages, "dcgm-node-0")["DCGM_FI_DEV_FB_USED"].samples]
    assert all("pod" not in labels and "container" not in labels for labels in after)
    moved = [sample.labels for sample in read(pages, "dcgm-node-1")["DCGM_FI_DEV_FB_USED"].samples]
    assert {labels["container"] for labels in moved} == {"vllm"}


def test_a_device_off_the_bus_has_no_rows(fleet: Fleet) -> None:
    pages = Pages(fleet)
    fleet.gpus.visible[1] = False
    try:
        families = read(pages, "dcgm-node-0")
    finally:
        fleet.gpus.visible[1] = True
    for name, family in families.items():
        assert gpu(fleet, 1) not in {sample.labels["UUID"] for sample in family.samples}, name
    assert len(families["DCGM_FI_DEV_GPU_TEMP"].samples) == 3


def test_effects_on_devices_change_their_counters_and_health() -> None:
    fleet = mixed()
    pages = Pages(fleet)
    Bent(
        fleet,
        ("gpus", "ecc_correctable_per_second", 0, 40.0),
        ("gpus", "ecc_uncorrectable_per_second", 1, 0.2),
        ("gpus", "row_remap_pending", 1, 1.0),
        ("gpus", "link_errors_per_second", 2, 5.0),
        ("gpus", "pcie_replays_per_second", 3, 9.0),
        ("gpus", "power_limit_ratio", 2, 0.5),
    )
    step(fleet, 60)
    families = read(pages, "dcgm-node-0")

    def values(name: str) -> list[float]:
        return [sample.value for sample in families[name].samples]

    assert values("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL")[0] >= 2000
    assert values("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")[1] >= 10
    assert values("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS")[1] >= 10
    assert values("DCGM_FI_DEV_ROW_REMAP_PENDING") == [0, 1, 0, 0]
    assert values("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL")[2] >= 250
    assert values("DCGM_FI_DEV_PCIE_REPLAY_COUNTER")[3] >= 450
    assert values("DCGM_FI_DEV_POWER_MGMT_LIMIT")[1:3] == [700, 350]
    assert values("DCGM_FI_DEV_POWER_VIOLATION")[2] > 1e9
    sick = {
        (sample.labels["gpu"], sample.labels["health_watch"]): sample.value
        for sample in families["DCGM_EXP_GPU_HEALTH_STATUS"].samples
        if sample.value
    }
    assert sick == {("1", "MEM"): 20.0, ("2", "NVLINK"): 10.0, ("3", "PCIE"): 10.0}


def test_every_device_line_of_the_npu_page_has_a_timestamp_and_the_documented_labels(fleet: Fleet) -> None:
    pages = Pages(fleet)
    body = pages.answer(target(fleet, "npu-node-3")).body
    assert body is not None
    lines = [line for line in body.decode().splitlines() if line.startswith("npu_chip_")]
    wanted = ["container_name", "id", "model_name", "namespace", "pcie_bus_info", "pod_name", "vdie_id"]
    for line in lines:
        row, value, at = re.fullmatch(r"(\S+) (\S+) (\d+)", line).groups()  # type: ignore[union-attr]
        assert re.findall(r'(\w+)="', row) == wanted
        assert float(value) >= 0
        assert abs(int(at) / 1000 - fleet.at) < 1
    families = read(pages, "npu-node-3")
    assert {family.type for family in families.values()} == {"gauge"}
    assert families["machine_npu_nums"].samples[0].value == 4
    owners = {sample.labels["pod_name"] for sample in families["npu_chip_info_utilization"].samples}
    assert owners == {"china-0", ""}
    assert "npu_chip_info_error_code" not in families


def test_a_lost_ascend_device_leaves_a_code_and_then_the_page() -> None:
    fleet = mixed()
    pages = Pages(fleet)
    device = int((fleet.gpus.node == 3).argmax())
    fleet.gpus.xid[device] = 79
    step(fleet, 15)
    families = read(pages, "npu-node-3")
    (code,) = families["npu_chip_info_error_code"].samples
    assert (code.value, code.labels["vdie_id"]) == (0x40F84E00, gpu(fleet, device))
    assert [sample.value for sample in families["npu_chip_info_health_status"].samples] == [0, 1, 1, 1]
    fleet.gpus.visible[device] = False
    families = read(pages, "npu-node-3")
    assert families["machine_npu_nums"].samples[0].value == 3
    assert "npu_chip_info_error_code" not in families


def test_time_stamps_follow_the_clock_of_the_node() -> None:
    fleet = mixed()
    Bent(fleet, ("nodes", "clock_offset_seconds", 3, -90.0))
    fleet.step(timedelta(seconds=15))
    pages = Pages(fleet)
    for name in ("npu-node-3", "cadvisor-node-3"):
        body = pages.answer(target(fleet, name)).body
        assert body is not None
        stamps = [int(line.rsplit(" ", 1)[1]) for line in body.decode().splitlines() if re.search(r"\} \S+ \d+$", line)]
        assert stamps
        assert all(abs(stamp / 1000 - (fleet.at - 90)) < 1 for stamp in stamps)
    assert read(pages, "node-3")["node_time_seconds"].samples[0].value == pytest.approx(fleet.at - 90, abs=1)
