"""An alert on a fault resolves within two minutes of good values, unless a documented reason forbids it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from alerts.rules.files import load_entries
from alerts.state import machine
from detectors.engine.batch_limit import BatchLimitDetector
from detectors.engine.liveness import LivenessDetector
from detectors.engine.output_validity import OutputValidityDetector
from detectors.engine.slow_startup import SlowStartupDetector
from detectors.hardware.gpu_faults import GpuFaultDetector
from detectors.hardware.power_cap import PowerCapDetector
from detectors.load.blackbox import BlackboxDetector
from detectors.load.gateway import GatewayDetector
from detectors.load.kpi import KpiDetector
from detectors.load.load_imbalance import LoadImbalanceDetector
from detectors.load.request_outcomes import RequestOutcomeDetector
from detectors.platform.autoscaler import AutoscalerDetector
from detectors.platform.container_faults import ContainerFaultDetector
from detectors.platform.host_faults import HostFaultDetector
from detectors.platform.node_faults import PortFaultDetector
from detectors.platform.noisy_neighbor import NoisyNeighborDetector
from detectors.platform.scrape_targets import ScrapeTargetDetector
from detectors.registry import OUTLASTS
from outrider.model import Alert, AlertState, CellStatus, EntityKind, EntityRef, Event, EventKind, Window
from outrider.ports import Detector
from outrider.topology import Topology
from outrider.vocabulary.faults import faults

CYCLE = timedelta(seconds=15)
LIMIT = timedelta(minutes=2)
T0 = datetime(2026, 11, 26, 9, tzinfo=UTC)
RULES = [replace(entry.rule, where={}) for entry in load_entries() if not entry.rule.instead_of]
CALM = machine.ServiceContext(frozenset(), frozenset(), lambda _entity: ())
K = EntityKind
Values = Mapping[str, float]
Timed = tuple[int, EntityRef, EventKind, str, Mapping[str, str]]


def entity(kind: EntityKind, name: str) -> EntityRef:
    namespace = {K.NODE: None, K.GPU: None, K.SWITCH: None, K.STORAGE: None, K.PORT: None, K.WORKLOAD: "targets"}
    return EntityRef("lab", kind, namespace.get(kind, "llm"), name)


@dataclass(frozen=True)
class Story:
    """Cycles with usual values, bad ones and good ones; ``events`` have the number of their cycle."""

    fault: str
    detector: Callable[[], Detector]
    bad: Mapping[str, Values]
    good: Mapping[str, Values]
    topology: Topology = field(default_factory=lambda: Topology.build(()))
    events: Sequence[Timed] = ()
    before: int = 8
    count: int = 16
    usual: Mapping[str, Values] | None = None


def gpu(**changes: float) -> Values:
    usual = dict.fromkeys(
        (
            "hw_accel_throttle_thermal_ratio", "hw_accel_ecc_uncorrectable_total", "hw_accel_ecc_correctable_total",
            "hw_accel_row_remap_failed", "hw_accel_row_remap_pending", "hw_accel_pcie_replay_total",
            "hw_accel_interconnect_errors_total", "hw_accel_throttle_power_ratio",
        ),
        0.0,
    )  # fmt: skip
    more = {"hw_accel_seen": 1.0, "hw_accel_temperature_celsius": 60.0, "hw_accel_power_watts": 400.0}
    limits = {
        "hw_accel_power_limit_watts": 700.0,
        "hw_accel_utilization_ratio": 0.9,
        "hw_accel_core_clock_hertz": 1.9e9,
    }
    return {**usual, **more, **limits, **changes}


def of_gpu(fault: str, bad: Values, detector: Callable[[], Detector] = GpuFaultDetector) -> Story:
    return Story(fault, detector, {"GPU-1": gpu(**bad)}, {"GPU-1": gpu()})


NODE = entity(K.NODE, "n0")
WELL = {
    "node_filesystem_available_ratio": 0.5,
    "node_disk_busy_ratio": 0.3,
    "node_io_stall_ratio": 0.01,
    "node_clock_offset_seconds": 0.0,
    "node_network_errors_per_second": 0.0,
    "node_network_bytes_per_second": 1e6,
}


def of_host(fault: str, bad: Values, *events: Timed, count: int = 16, well: Values = WELL) -> Story:
    return Story(fault, HostFaultDetector, {"n0": {**WELL, **bad}}, {"n0": well}, events=events, count=count)


def line(cycle: int, code: str, **attributes: str) -> Timed:
    return (cycle, NODE, EventKind.LOG, code, {"text": code, **attributes})


PORTS = {f"n{number}/mlx0": f"n{number}" for number in range(4)}
RACK = Topology.build(
    [
        edge
        for port, node in PORTS.items()
        for edge in ((entity(K.SWITCH, "leaf"), entity(K.NODE, node)), (entity(K.NODE, node), entity(K.PORT, port)))
    ]
)


def of_ports(fault: str, down: Sequence[str]) -> Story:
    well = {port: {"hw_link_up": 1.0} for port in PORTS}
    bad = {**well, **{port: {"hw_link_up": 0.0} for port in down}}
    return Story(fault, PortFaultDetector, bad, well, RACK)


def target(name: str, node: str) -> tuple[EntityRef, dict[str, str]]:
    return entity(K.WORKLOAD, name), {"adapter": "x", "node": node, "stands_for": entity(K.NODE, node).key}


TARGETS = dict(target(f"n{node}-{kind}", f"n{node}") for node in range(4) for kind in ("node", "dcgm"))


def of_targets(fault: str, down: Sequence[str], code: float, trust: float = 1.0, up: float = 0.0) -> Story:
    well = {one.name: {"target_up": 1.0, "target_failure_code": 0.0, "target_trust_code": 0.0} for one in TARGETS}
    failed = {"target_up": up, "target_failure_code": code, "target_trust_code": trust}
    bad = {**well, **dict.fromkeys(down, failed)}
    return Story(fault, ScrapeTargetDetector, bad, well, Topology.build((), TARGETS, TARGETS))


BUSY = {
    "engine_up": 1.0, "target_failure_code": 0.0, "engine_health_ok": 1.0, "engine_sleep_state": 1.0,
    "engine_requests_running": 3.0, "engine_requests_waiting": 0.0, "engine_generation_tokens_total": 300.0,
    "engine_iterations_total": 100.0, "engine_requests_finished_total": 4.0, "engine_inflight_requests": 3.0,
    "engine_open_files": 36.0,
}  # fmt: skip
STILL = dict.fromkeys(
    ("engine_generation_tokens_total", "engine_iterations_total", "engine_requests_finished_total"), 0.0
)


def of_engine(fault: str, bad: Values) -> Story:
    whole = bad if bad.get("engine_up") == 0.0 else {**BUSY, **bad}
    return Story(fault, LivenessDetector, {"chat-0": whole}, {"chat-0": BUSY}, count=24)


PROBED = {
    "probe_success": 1.0, "probe_cert_expiry_seconds": 30 * 86400.0, "probe_e2e_seconds": 0.3,
    "probe_outcome_code": 0.0, "svc_requests_total": 10.0,
}  # fmt: skip
UNREACHED = {"probe_success": 0.0, "probe_outcome_code": 2.0, "probe_e2e_seconds": 10.0}
CHAT = entity(K.SERVICE, "chat")
STORAGE = entity(K.STORAGE, "models")
PODS = [entity(K.POD, f"s-{number}") for number in range(4)]
STARTING = Topology.build(
    [
        edge
        for number, pod in enumerate(PODS)
        for edge in (
            (STORAGE, entity(K.NODE, f"n{number}")),
            (entity(K.NODE, f"n{number}"), pod),
            (pod, entity(K.REPLICA, f"s-{number}")),
            (entity(K.REPLICA, f"s-{number}"), CHAT),
        )
    ],
    (),
    {entity(K.NODE, f"n{number}"): {"pool": "a"} for number in range(4)},
)
PULLED = 'Successfully pulled image "vllm" in 30s (31s including waiting). Image size: 9 bytes.'


def of_pods(fault: str, waiting: Sequence[int], codes: Sequence[str], unschedulable: float = 0.0) -> Story:
    ready = {"pod_ready": 1.0, "pod_startup_seconds": 200.0, "pod_unschedulable": 0.0}
    well = {pod.name: ready for pod in PODS}
    late = {**ready, "pod_ready": 0.0, "pod_unschedulable": unschedulable}
    bad = {**well, **{f"s-{number}": late for number in waiting}}
    pulls = [(0, pod, EventKind.KUBERNETES, "Pulled", {"text": PULLED}) for pod in PODS]
    placed = [(8, PODS[number], EventKind.KUBERNETES, code, {}) for number in waiting for code in codes]
    return Story(fault, SlowStartupDetector, bad, well, STARTING, [*pulls, *placed], count=40)


REPLICAS = [entity(K.REPLICA, f"chat-{number}") for number in range(3)]
FLAGS = EventKind.CHANGE, "flags"
SMALLER = {"from": "--max-num-seqs=96", "to": "--max-num-seqs=32"}
RESTORED = {"from": "--max-num-seqs=32", "to": "--max-num-seqs=96"}
SERVED = Topology.build([(one, CHAT) for one in REPLICAS])
SERVES = {"engine_http_requests_total": 30.0, "engine_inflight_requests": 8.0}
HEAVY = {"engine_http_requests_total": 90.0, "engine_inflight_requests": 40.0}
NODES = [f"n{number}" for number in range(4)]
STALLED = {"node_disk_busy_ratio": 1.0, "node_io_stall_ratio": 0.5}
IDLE = {"node_cpu_utilization_ratio": 0.1, "node_disk_busy_ratio": 0.0}
ANSWERS = {
    "svc_requests_total": 150.0, "svc_requests_per_second": 10.0, "svc_inflight_requests": 40.0,
    "svc_failed_total": 0.0, "svc_refused_total": 0.0, "svc_abandoned_total": 0.0, "svc_queue_requests": 0.0,
    "svc_ready_backends": 6.0, "probe_success": 1.0, "probe_http_status_code": 200.0,
    "probe_cert_expiry_seconds": 1e6, "svc_kpi_value": 0.6, "svc_output_invalid_ratio": 0.0,
}  # fmt: skip


def of_service(fault: str, detector: Callable[[], Detector], bad: Values) -> Story:
    return Story(fault, detector, {"chat": {**ANSWERS, **bad}}, {"chat": ANSWERS}, before=60)


STORIES = (
    of_gpu("gpu-lost", {"hw_accel_seen": 0.0}),
    of_gpu("gpu-ecc-storm", {"hw_accel_ecc_correctable_total": 90.0}),
    of_gpu("gpu-thermal-throttle", {"hw_accel_throttle_thermal_ratio": 0.5}),
    of_gpu("nvlink-degraded", {"hw_accel_interconnect_errors_total": 300.0}),
    of_gpu("pcie-degraded", {"hw_accel_pcie_replay_total": 120.0}),
    of_gpu(
        "gpu-power-throttle",
        {"hw_accel_throttle_power_ratio": 0.9, "hw_accel_power_limit_watts": 400.0},
        PowerCapDetector,
    ),
    of_ports("ib-link-down", ["n0/mlx0"]),
    of_ports("switch-down", [*PORTS]),
    of_host("disk-full", {"node_filesystem_available_ratio": 0.01}),
    of_host("disk-slow", STALLED, line(20, "disk-error"), well={**WELL, "node_disk_busy_ratio": 1.0}),  # full load
    of_host("disk-slow", STALLED, count=40),
    of_host("clock-skew", {"node_clock_offset_seconds": 0.3}),
    of_host("network-loss", {"node_network_errors_per_second": 100.0}),
    of_host("psu-or-fan-failed", {}, line(9, "sensor-alarm", sensor="Fan 4"), line(24, "sensor-ok", sensor="Fan 4")),
    of_targets("exporter-down", ["n0-dcgm"], 1.0),
    of_targets("node-lost", ["n0-dcgm", "n0-node"], 2.0),
    of_targets("monitor-blind", [one.name for one in TARGETS], 2.0),
    of_targets("stale-metrics", ["n0-dcgm"], 0.0, trust=2.0, up=1.0),
    of_engine("engine-dead", {"engine_up": 0.0, "target_failure_code": 1.0, "engine_health_ok": 0.0}),
    of_engine("engine-hung", STILL),
    of_engine("engine-core-dead", {**STILL, "engine_health_ok": 0.0, "engine_requests_running": 0.0}),
    of_engine("engine-asleep", {**STILL, "engine_sleep_state": 0.0}),
    Story(
        "cert-or-dns",
        BlackboxDetector,
        {"chat": {**PROBED, "probe_success": 0.0, "probe_outcome_code": 4.0}, "code": PROBED},
        {"chat": PROBED, "code": PROBED},
    ),
    Story(
        "cluster-lost",
        BlackboxDetector,
        {"chat": UNREACHED, "code": UNREACHED},
        {"chat": PROBED, "code": PROBED},
        count=24,
    ),
    Story(
        "cpu-throttled",
        ContainerFaultDetector,
        {"s-0/vllm": {"container_cpu_throttled_ratio": 0.6, "container_cpu_usage_cores": 4.0}},
        {"s-0/vllm": {"container_cpu_throttled_ratio": 0.0, "container_cpu_usage_cores": 4.0}},
    ),
    Story(
        "autoscaler-stuck",
        AutoscalerDetector,
        {"chat": {"autoscaler_errors_per_second": 1.0}},
        {"chat": {"autoscaler_errors_per_second": 0.0}},
    ),
    Story(
        "batch-misconfigured",
        BatchLimitDetector,
        {one.name: {"engine_requests_running": 20.0} for one in REPLICAS},
        {one.name: {"engine_requests_running": 20.0} for one in REPLICAS},
        Topology.build([(one, CHAT) for one in REPLICAS]),
        [(8, CHAT, *FLAGS, SMALLER), (24, CHAT, *FLAGS, RESTORED)],
        usual={one.name: {"engine_requests_running": 60.0} for one in REPLICAS},
    ),
    Story(
        "noisy-neighbour",
        NoisyNeighborDetector,
        {name: {**IDLE, "node_cpu_utilization_ratio": 0.9 if name == "n0" else 0.1} for name in NODES},
        dict.fromkeys(NODES, IDLE),
        before=30,
    ),
    of_service("kpi-drop", KpiDetector, {"svc_kpi_value": 0.3}),
    of_service("bad-requests", RequestOutcomeDetector, {"svc_refused_total": 30.0}),
    of_service("client-aborts", RequestOutcomeDetector, {"svc_abandoned_total": 40.0}),
    of_service("traffic-drop", GatewayDetector, {"svc_requests_total": 1.0, "svc_requests_per_second": 0.07}),
    of_service(
        "gateway-fault",
        GatewayDetector,
        {
            "svc_requests_total": 60.0,
            "svc_requests_per_second": 4.0,
            "probe_success": 0.0,
            "probe_http_status_code": 503.0,
        },
    ),
    Story(
        "traffic-skew",
        LoadImbalanceDetector,
        {one.name: SERVES if number else {**SERVES, **HEAVY} for number, one in enumerate(REPLICAS)},
        {one.name: SERVES for one in REPLICAS},
        SERVED,
        before=40,
    ),
    of_service("garbled-output", OutputValidityDetector, {"svc_output_invalid_ratio": 0.2}),
    of_pods("image-pull-slow", [0], ["Scheduled"]),
    of_pods("slow-start", [0], ["Scheduled", "Started"]),
    of_pods("storage-slow", [0, 1], ["Scheduled", "Started"]),
    of_pods("pods-pending", [0], [], unschedulable=1.0),
)


def fires(story: Story) -> list[bool]:
    """Whether an alert on the fault is active after each cycle."""
    detector = story.detector()
    cycles = [story.usual or story.good] * story.before + [story.bad] * story.count + [story.good] * 48
    names, keys = list(story.good), [key.name for key in detector.keys]
    matrix = np.array(
        [[[cycle[name].get(key, np.nan) for key in keys] for cycle in cycles] for name in names], dtype=np.float64
    )
    entities = tuple(entity(detector.kind, name) for name in names)
    columns, state, active, result = round(detector.window / CYCLE), detector.initial(), (), []
    events = tuple(
        Event(f"{number}", kind, about, T0 + (cycle + 1) * CYCLE, "test", code, attributes)
        for number, (cycle, about, kind, code, attributes) in enumerate(story.events)
    )
    for number in range(1, len(cycles) + 1):
        now, values = T0 + number * CYCLE, matrix[:, max(0, number - columns) : number]
        times = np.array([(now - place * CYCLE).timestamp() for place in reversed(range(values.shape[1]))])
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        seen = tuple(event for event in events if now - detector.window < event.at <= now)
        window = Window(detector.kind, entities, times, detector.keys, values, status, CYCLE, seen)
        state, verdicts = detector.detect(state, window, story.topology, now)
        active = machine.advance(_firing(active), verdicts, None, RULES, CALM, now)
        result.append(any(alert.fault == story.fault and alert.state is AlertState.FIRING for alert in active))
    return result


def _firing(alerts: Sequence[Alert]) -> tuple[Alert, ...]:
    return tuple(alert for alert in alerts if alert.state is not AlertState.RESOLVED)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.fault)
def test_an_alert_resolves_within_two_minutes_of_good_values(story: Story) -> None:
    states, good = fires(story), story.before + story.count
    assert states[good - 1], "it fires while the values are bad"
    assert states[good - 1 :].index(False) * CYCLE - CYCLE <= LIMIT
    assert not any(states[good + round(LIMIT / CYCLE) + 1 :]), "and it stays resolved"


def test_every_fault_of_a_rule_resolves_in_time_or_has_a_reason() -> None:
    named = {fault for rule in RULES for fault in rule.faults}
    checked = {story.fault for story in STORIES}
    assert named == checked | set(OUTLASTS)
    assert not checked & set(OUTLASTS)
    assert set(OUTLASTS) <= set(faults())
