from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from detectors.hardware.gpu_faults import GpuFaultDetector
from detectors.hardware.xid import xids
from detectors.platform.node_faults import NodeFaultDetector, PortFaultDetector
from outrider.model import EntityKind, EntityRef, Event, EventKind, NoVerdictReason
from outrider.topology import Topology
from outrider.vocabulary.faults import faults

GPU, NODE, POD, PORT = EntityKind.GPU, EntityKind.NODE, EntityKind.POD, EntityKind.PORT
N0 = EntityRef("lab", NODE, None, "n0")
GPUS = [EntityRef("lab", GPU, None, f"GPU-{i}") for i in range(4)]
TOPOLOGY = Topology.build([(N0, gpu) for gpu in GPUS])


def healthy(length):
    return {
        "hw_accel_seen": [1.0] * length,
        "hw_accel_temperature_celsius": [60.0] * length,
        "hw_accel_core_clock_hertz": [1.9e9] * length,
        "hw_accel_utilization_ratio": [0.9] * length,
        "hw_accel_power_watts": [400.0] * length,
        "hw_accel_power_limit_watts": [700.0] * length,
        "hw_accel_throttle_thermal_ratio": [0.0] * length,
        "hw_accel_ecc_uncorrectable_total": [0.0] * length,
        "hw_accel_ecc_correctable_total": [0.0] * length,
        "hw_accel_row_remap_failed": [0.0] * length,
        "hw_accel_row_remap_pending": [0.0] * length,
        "hw_accel_pcie_replay_total": [0.0] * length,
        "hw_accel_interconnect_errors_total": [0.0] * length,
    }


def xid(code, at, entity=GPUS[0]):
    return Event(f"{code}-{at}", EventKind.XID, entity, datetime.fromtimestamp(at, tz=UTC), "dcgm", str(code))


@pytest.fixture
def find(window_of, findings_of):
    def run(changes, length=10, events=(), topology=TOPOLOGY, verdicts=None):
        rows = {gpu.name: {**healthy(length), **changes.get(gpu.name, {})} for gpu in GPUS}
        findings = findings_of(GpuFaultDetector(), window_of(GPU, rows, events=events), topology, verdicts=verdicts)
        return [(item.fault, item.entity.name) for item in findings]

    return run


def gone_after(length, count, **more):
    """Columns of a GPU that disappears ``count`` scrapes before the end."""
    return {name: [*values[: length - count], *[None] * count] for name, values in {**healthy(length), **more}.items()}


def test_healthy_gpus_have_no_finding(find):
    assert find({}) == []


def test_a_gpu_missing_from_a_complete_page_is_lost_at_once(find):
    lost = {**gone_after(10, 1), "hw_accel_seen": [1.0] * 9 + [0.0]}
    assert find({"GPU-1": lost}) == [("gpu-lost", "GPU-1")]


def test_a_lost_gpu_has_no_other_finding(find):
    lost = {
        **gone_after(10, 2),
        "hw_accel_seen": [1.0] * 8 + [0.0] * 2,
        "hw_accel_ecc_uncorrectable_total": [0.0] * 7 + [1.0, None, None],
    }
    assert find({"GPU-1": lost}) == [("gpu-lost", "GPU-1")]


def test_a_missing_gpu_is_lost_if_its_neighbors_are_present(find):
    unreported = {gpu.name: {"hw_accel_seen": [None] * 10} for gpu in GPUS}
    assert find({**unreported, "GPU-2": {**gone_after(10, 2), "hw_accel_seen": [None] * 10}}) == [("gpu-lost", "GPU-2")]
    assert find({**unreported, "GPU-2": {**gone_after(10, 1), "hw_accel_seen": [None] * 10}}) == []


def test_a_vanished_gpu_outside_the_topology_is_lost(window_of, now_of):
    detector = GpuFaultDetector()
    unreported = {gpu.name: {**healthy(10), "hw_accel_seen": [None] * 10} for gpu in GPUS}
    before = window_of(GPU, unreported)
    state, verdicts = detector.detect(detector.initial(), before, TOPOLOGY, now_of(before))
    assert verdicts == ()
    unreported["GPU-2"] = {**gone_after(10, 2), "hw_accel_seen": [None] * 10}
    after = window_of(GPU, unreported)
    without = Topology.build([(N0, gpu) for gpu in GPUS if gpu.name != "GPU-2"])
    _, (finding,) = detector.detect(state, after, without, now_of(after))
    assert (finding.fault, finding.entity.name) == ("gpu-lost", "GPU-2")


def test_a_replaced_gpu_is_not_lost(window_of, findings_of, ref):
    new = EntityRef("lab", GPU, None, "GPU-new")
    every = {**{gpu.name: healthy(10) for gpu in GPUS}, new.name: gone_after(10, 10)}
    every = {name: {**rows, "hw_accel_seen": [None] * 10} for name, rows in every.items()}
    topology = Topology.build([(N0, gpu) for gpu in (*GPUS, new)])
    for replaced, lost in ((True, []), (False, ["GPU-2"])):
        detector = GpuFaultDetector()
        before = window_of(GPU, every)
        state, _ = detector.detect(detector.initial(), before, topology, datetime.fromtimestamp(before.times[-1], UTC))
        shown = healthy(10) if replaced else gone_after(10, 10)
        rows = {**every, "GPU-2": gone_after(10, 4), new.name: shown}
        after = window_of(GPU, {name: {**row, "hw_accel_seen": [None] * 10} for name, row in rows.items()})
        now = datetime.fromtimestamp(after.times[-1], UTC)
        _, verdicts = detector.detect(state, after, topology, now)
        assert [one.entity.name for one in verdicts if getattr(one, "fault", None) == "gpu-lost"] == lost


def test_an_unreachable_exporter_is_not_a_lost_gpu(find):
    verdicts = []
    assert find({gpu.name: gone_after(20, 15) for gpu in GPUS}, length=20, verdicts=verdicts) == []
    assert {item.reason for item in verdicts} == {NoVerdictReason.NO_VALUES}
    unreported = {gpu.name: {**gone_after(10, 5), "hw_accel_seen": [None] * 10} for gpu in GPUS}
    assert find(unreported) == []


@pytest.mark.parametrize(
    ("code", "fault", "entity"),
    [
        (79, "gpu-lost", "GPU-0"),
        (48, "gpu-xid-hardware", "GPU-0"),
        (94, "gpu-xid-hardware", "GPU-0"),
        (119, "gpu-xid-hardware", "GPU-0"),
        (13, "gpu-xid-application", "pod-0"),
        (43, "gpu-xid-application", "pod-0"),
        (999, "gpu-xid-hardware", "GPU-0"),
    ],
)
def test_xids_map_to_faults(find, code, fault, entity):
    pod = EntityRef("lab", POD, "default", "pod-0")
    topology = Topology.build([*TOPOLOGY.edges, (GPUS[0], pod)])
    assert find({}, events=[xid(code, 1_800_000_010)], topology=topology) == [(fault, entity)]


def test_codes_without_an_action_give_no_finding(find):
    assert find({}, events=[xid(code, 1_800_000_010) for code in (0, 63, 154)]) == []


def test_equal_codes_are_counted_and_old_ones_ignored(window_of):
    detector = GpuFaultDetector()
    events = [xid(48, 1_800_000_010), xid(48, 1_800_000_020)]
    window = window_of(GPU, {"GPU-0": healthy(10)}, events=events)
    at = datetime.fromtimestamp(window.times[-1], tz=UTC)
    _, (finding,) = detector.detect(detector.initial(), window, TOPOLOGY, at)
    assert finding.evidence[0].arguments["count"] == "2"
    _, later = detector.detect(detector.initial(), window, TOPOLOGY, at + timedelta(minutes=11))
    assert later == ()


def test_a_sticky_gauge_is_not_an_event(find):
    assert find({"GPU-0": {"hw_accel_fault_code": [79.0] * 10}}) == []


@pytest.mark.parametrize(
    ("signal", "values", "fault"),
    [
        ("hw_accel_ecc_uncorrectable_total", [0.0] * 5 + [1.0] + [0.0] * 4, "gpu-ecc-uncorrectable"),
        ("hw_accel_row_remap_failed", [0.0] * 9 + [1.0], "gpu-ecc-uncorrectable"),
        ("hw_accel_row_remap_pending", [0.0] * 9 + [1.0], "gpu-ecc-uncorrectable"),
        ("hw_accel_ecc_correctable_total", [20.0] * 10, "gpu-ecc-storm"),
        ("hw_accel_throttle_thermal_ratio", [0.0] * 8 + [0.5] * 2, "gpu-thermal-throttle"),
        ("hw_accel_interconnect_errors_total", [0.0] * 8 + [30.0] * 2, "nvlink-degraded"),
        ("hw_accel_pcie_replay_total", [0.0] * 8 + [30.0] * 2, "pcie-degraded"),
    ],
)
def test_faults_reported_by_the_gpu(find, signal, values, fault):
    assert find({"GPU-3": {signal: values}}) == [(fault, "GPU-3")]


@pytest.mark.parametrize(
    ("signal", "values"),
    [
        ("hw_accel_ecc_correctable_total", [1.0] * 10),
        ("hw_accel_throttle_thermal_ratio", [0.0] * 9 + [0.5]),
        ("hw_accel_interconnect_errors_total", [0.0] * 9 + [30.0]),
        ("hw_accel_pcie_replay_total", [1.0] * 10),
    ],
)
def test_values_within_limits_have_no_finding(find, signal, values):
    assert find({"GPU-3": {signal: values}}) == []


def test_a_row_remap_that_waits_for_a_reset_keeps_its_finding(find):
    waits = {"hw_accel_row_remap_pending": [1.0] * 200}
    assert find({"GPU-3": waits}, length=200) == [("gpu-ecc-uncorrectable", "GPU-3")]


def test_an_uncorrectable_error_counts_for_ten_minutes(find):
    once = [0.0, 1.0, *[0.0] * 60]
    assert find({"GPU-3": {"hw_accel_ecc_uncorrectable_total": once}}, length=62) == [
        ("gpu-ecc-uncorrectable", "GPU-3")
    ]


@pytest.mark.parametrize(
    ("signal", "fault"),
    [
        ("hw_accel_ecc_correctable_total", "gpu-ecc-storm"),
        ("hw_accel_interconnect_errors_total", "nvlink-degraded"),
        ("hw_accel_pcie_replay_total", "pcie-degraded"),
    ],
)
def test_errors_without_newer_values_have_not_ended(find, signal, fault):
    bad = [60.0] * 4
    assert find({"GPU-3": {signal: [*bad, *[None] * 30]}}, length=34) == [(fault, "GPU-3")]
    assert find({"GPU-3": {signal: [*bad, *[0.0] * 30]}}, length=34) == []
    assert find({"GPU-3": {signal: [*bad, *[3.0] * 30]}}, length=34) == [(fault, "GPU-3")], "fewer, but they go on"


def test_a_hot_gpu_with_a_low_clock_is_throttled_without_a_counter(find):
    hot = {
        "hw_accel_throttle_thermal_ratio": [None] * 10,
        "hw_accel_temperature_celsius": [70.0] * 7 + [88.0] * 3,
        "hw_accel_core_clock_hertz": [1.9e9] * 7 + [1.2e9] * 3,
    }
    assert find({"GPU-0": hot}) == [("gpu-thermal-throttle", "GPU-0")]
    assert find({"GPU-0": {**hot, "hw_accel_utilization_ratio": [0.9] * 7 + [0.1] * 3}}) == []
    assert find({"GPU-0": {**hot, "hw_accel_power_watts": [690.0] * 10}}) == []


def test_a_node_with_fewer_gpus_than_expected_is_reported(window_of, findings_of):
    rows = {"n0": {"hw_accel_present": [4.0] * 5, "node_accel_capacity": [8.0] * 5}}
    (finding,) = findings_of(NodeFaultDetector(), window_of(NODE, rows), TOPOLOGY)
    assert (finding.fault, finding.entity, finding.observed) == ("gpu-lost", N0, 4.0)
    rows = {"n0": {"hw_accel_present": [8.0, 8.0, 7.0, 7.0, 7.0], "node_accel_capacity": [8.0] * 5}}
    assert findings_of(NodeFaultDetector(), window_of(NODE, rows), TOPOLOGY) == []


def test_a_node_that_is_not_ready_is_a_deviation(window_of, findings_of):
    (finding,) = findings_of(NodeFaultDetector(), window_of(NODE, {"n0": {"node_ready": [1.0, 1.0, 0.0, 0.0]}}))
    assert (finding.fault, finding.signals) == (None, ("node_ready",))


def test_a_lost_link_is_reported_on_its_node(window_of, findings_of):
    rows = {"mlx5_0": {"hw_link_up": [1.0, 1.0, 0.0, 0.0]}, "mlx5_1": {"hw_link_up": [0.0] * 4}}
    window = window_of(PORT, rows)
    labels = {port: {"node": "n0"} for port in window.entities}
    (finding,) = findings_of(PortFaultDetector(), window, Topology.build((), window.entities, labels))
    assert (finding.fault, finding.entity) == ("ib-link-down", N0)
    assert finding.evidence[0].arguments == {"ports": "mlx5_0"}


def test_simultaneous_link_losses_are_reported_on_the_switch(window_of, findings_of, ref):
    switch, other = (EntityRef("lab", EntityKind.SWITCH, None, name) for name in ("rack-1", "rack-2"))
    nodes = {name: ref(EntityKind.NODE, name) for name in "abcd"}
    ports = {name: ref(EntityKind.PORT, f"{name}/mlx5_0") for name in "abcd"}
    behind = [(switch, nodes[name]) for name in "abc"] + [(other, nodes["d"])]
    topology = Topology.build([*behind, *((nodes[name], ports[name]) for name in "abcd")])

    def find(**down_from):
        rows = {
            f"{name}/mlx5_0": {"hw_link_up": [float(place < down_from.get(name, 99)) for place in range(60)]}
            for name in "abcd"
        }
        findings = findings_of(PortFaultDetector(), window_of(EntityKind.PORT, rows), topology)
        return [(item.fault, item.entity.name) for item in findings]

    assert find(a=50, b=51, c=52) == [("switch-down", "rack-1")]
    assert find(a=50, b=50) == [("switch-down", "rack-1")], "most of them"
    assert find(a=50) == [("ib-link-down", "a")]
    assert find(a=50, d=50) == [("ib-link-down", "a"), ("ib-link-down", "d")], "of two racks"
    assert find(a=10, b=50) == [("ib-link-down", "a"), ("ib-link-down", "b")], "minutes apart"
    assert find(a=50, b=50, d=50) == [("switch-down", "rack-1"), ("ib-link-down", "d")]


def test_every_fault_of_the_xid_table_exists():
    assert len(xids()) > 100
    assert {entry.fault for entry in xids().values() if entry.fault} <= set(faults())
