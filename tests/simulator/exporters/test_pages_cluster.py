"""Pages of hosts, containers, Kubernetes and the gateway."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from simulator.exporters.targets import Pages, every_target
from simulator.fleet import Fleet
from simulator.hardware.nodes import FILESYSTEM_BYTES
from tests.simulator.small import Bent, coarse_fleet, step

Families = dict[str, Metric]
SHARED = Path(os.environ.get("OUTRIDER_DATA", Path(__file__).parents[4] / "shared"))


@pytest.fixture(scope="module")
def quiet() -> Fleet:
    return coarse_fleet()


def body(pages: Pages, name: str) -> str:
    target = next(one for one in every_target(pages.fleet) if one.name == name)
    result = pages.answer(target).body
    assert result is not None
    return result.decode()


def read(pages: Pages, name: str) -> Families:
    return {family.name: family for family in text_string_to_metric_families(body(pages, name))}


def value(families: Families, name: str, **labels: str) -> float:
    (result,) = [sample.value for sample in families[name].samples if labels.items() <= sample.labels.items()]
    return result


def values(families: Families, name: str, **labels: str) -> list[float]:
    result = families.get(name)
    return (
        [] if result is None else [sample.value for sample in result.samples if labels.items() <= sample.labels.items()]
    )


def recorded(name: str) -> Families:
    path = SHARED / "pages" / name
    if not path.exists():
        pytest.skip("no recorded pages here")
    # Some combine several recordings, so a family may occur twice.
    return {family.name: family for family in text_string_to_metric_families(path.read_text(encoding="utf-8"))}


# --- hosts --------------------------------------------------------------------------------------------


def test_effects_on_a_host_change_its_page() -> None:
    fleet = coarse_fleet()
    pages = Pages(fleet)
    before = read(pages, "node-1")
    Bent(
        fleet,
        ("nodes", "disk_lost_ratio", 1, 0.6),
        ("nodes", "disk_factor", 1, 8.0),
        ("nodes", "packet_loss_ratio", 1, 0.1),
        ("nodes", "port_up", 1, 0.0),
        ("nodes", "rdma_errors_per_second", 1, 4.0),
        ("nodes", "clock_offset_seconds", 1, 0.4),
        ("nodes", "neighbor_cpu_ratio", 1, 0.9),
    )
    step(fleet, 60)
    after = read(pages, "node-1")

    def grew(name: str) -> float:
        return value(after, name) - value(before, name)

    assert value(after, "node_filesystem_avail_bytes") < 0.13 * FILESYSTEM_BYTES
    assert grew("node_disk_io_time_seconds") > 40
    assert grew("node_pressure_io_stalled_seconds") > 5
    assert grew("node_pressure_cpu_waiting_seconds") > 10
    assert grew("node_network_receive_errs") > 0
    assert grew("node_network_receive_drop") > 0
    assert grew("node_netstat_Tcp_RetransSegs") > 0
    assert (value(before, "node_infiniband_state_id"), value(after, "node_infiniband_state_id")) == (4, 1)
    assert grew("node_infiniband_link_downed") == 1
    assert grew("node_infiniband_port_errors_received") == pytest.approx(240, abs=30)
    assert value(after, "node_timex_offset_seconds") == pytest.approx(0.4, abs=0.01)
    assert value(after, "node_timex_sync_status") == 0


def test_a_host_without_fans_gets_warm_inside() -> None:
    fleet = coarse_fleet()
    busy = int(fleet.pods.node_of_slot[0])
    pages = Pages(fleet)
    before = value(read(pages, f"node-{busy}"), "node_hwmon_temp_celsius")
    Bent(fleet, ("nodes", "fan_factor", busy, 0.3))
    step(fleet, 240)
    assert value(read(pages, f"node-{busy}"), "node_hwmon_temp_celsius") > before + 1


# --- containers ---------------------------------------------------------------------------------------


def test_containers_have_their_own_rows_and_totals_without_a_name(quiet: Fleet) -> None:
    pages = Pages(quiet)
    pod = quiet.pods.pods[0]
    families = read(pages, f"cadvisor-node-{pod.node}")
    rows = families["container_memory_working_set_bytes"].samples
    assert {row.labels["container"] for row in rows} == {"", "vllm"}
    whole, own = [row for row in rows if row.labels["pod"] == pod.name]
    assert (whole.labels["container"], own.labels["container"]) == ("", "vllm")
    assert own.value == whole.value > 1e9
    (node,) = [row for row in rows if not row.labels["pod"]]
    assert node.value == sum(row.value for row in rows if row.labels["container"])
    assert value(families, "container_spec_memory_limit_bytes", pod=pod.name, container="vllm") > own.value
    usage = families["container_cpu_usage_seconds"].samples
    assert {one.labels["cpu"] for one in usage} == {"total"}


def test_only_measurements_have_a_timestamp(quiet: Fleet) -> None:
    lines = [line for line in body(Pages(quiet), "cadvisor-node-0").splitlines() if line.startswith("container_")]
    assert len(lines) > 30
    for line in lines:
        measured = not line.startswith(("container_spec_", "container_start_time", "container_scrape_error"))
        assert bool(re.search(r"\} \S+ \d+$", line)) is measured, line


def test_cadvisor_families_are_those_of_a_recorded_page(quiet: Fleet) -> None:
    real, ours = recorded("cadvisor.txt"), read(Pages(quiet), "cadvisor-node-0")
    common = set(real) & set(ours)
    assert len(common) >= 15
    for name in common:
        assert (ours[name].type, ours[name].documentation) == (real[name].type, real[name].documentation), name
        keys = [{tuple(sorted(sample.labels)) for sample in result[name].samples} for result in (ours, real)]
        assert keys[0] <= keys[1], name


def test_throttling_and_a_leak_are_visible_and_the_limit_kills() -> None:
    fleet = coarse_fleet()
    pages = Pages(fleet)
    pod = fleet.pods.pods[0]
    page, mine = f"cadvisor-node-{pod.node}", {"pod": pod.name, "container": "vllm"}
    before = read(pages, page)
    leak = Bent(fleet, ("slots", "cpu_throttled_ratio", 0, 0.5), ("slots", "host_memory_bytes", 0, 2e10))
    step(fleet, 60)
    after = read(pages, page)
    periods = value(after, "container_cpu_cfs_periods", **mine) - value(before, "container_cpu_cfs_periods", **mine)
    cut = [value(one, "container_cpu_cfs_throttled_periods", **mine) for one in (before, after)]
    assert (cut[1] - cut[0]) / periods == pytest.approx(0.5, abs=0.05)
    held = [value(one, "container_memory_working_set_bytes", **mine) for one in (before, after)]
    assert held[1] - held[0] == pytest.approx(2e10, rel=0.1)
    assert value(read(pages, "kube-state"), "kube_pod_container_status_restarts", pod=pod.name) == 0
    leak.stop(fleet)
    Bent(fleet, ("slots", "host_memory_bytes", 0, 2e12))
    step(fleet, 15)
    assert value(read(pages, page), "container_oom_events", **mine) >= 1
    assert value(read(pages, f"node-{pod.node}"), "node_vmstat_oom_kill") >= 1
    kube = read(pages, "kube-state")
    assert value(kube, "kube_pod_container_status_last_terminated_reason", pod=pod.name, reason="OOMKilled") == 1
    assert value(kube, "kube_pod_container_status_last_terminated_exitcode", pod=pod.name) == 137


# --- Kubernetes ---------------------------------------------------------------------------------------


def test_kube_state_families_are_those_of_a_recorded_page(quiet: Fleet) -> None:
    real, ours = recorded("kube_state_metrics.txt"), read(Pages(quiet), "kube-state")
    common = set(real) & set(ours)
    assert len(common) >= 15
    for name in common:
        assert ours[name].type == real[name].type, name
        if real[name].samples and ours[name].samples:
            # The recorded releases have no uid, unit and container ids yet.
            known = set().union(*(sample.labels for sample in real[name].samples)) - {
                "provider_id",
                "kubeproxy_version",
            }
            assert known <= set(ours[name].samples[0].labels), name


@pytest.mark.slow
def test_a_deleted_pod_comes_back_with_another_uid_and_no_restarts() -> None:
    fleet = coarse_fleet()
    pages = Pages(fleet)
    pod = fleet.pods.pods[0]
    fleet.crash(0, "test", held=False)
    step(fleet, 300)
    name = "kube_pod_container_status_restarts"
    (first,) = [sample for sample in read(pages, "kube-state")[name].samples if sample.labels["pod"] == pod.name]
    assert first.value >= 1
    fleet.restart(0)
    step(fleet, 5)
    (second,) = [sample for sample in read(pages, "kube-state")[name].samples if sample.labels["pod"] == pod.name]
    assert (second.value, second.labels["uid"] == first.labels["uid"]) == (0, False)
    phases = [
        sample
        for sample in read(pages, "kube-state")["kube_pod_status_phase"].samples
        if sample.labels["pod"] == pod.name
    ]
    assert {phase.labels["phase"]: phase.value for phase in phases}["Pending"] == 1


def test_a_container_is_in_crash_loop_after_its_first_failed_restart() -> None:
    fleet = coarse_fleet()
    pages = Pages(fleet)
    reason = "kube_pod_container_status_waiting_reason"
    fleet.crash(0, "test", held=True)
    step(fleet, 5)
    assert values(read(pages, "kube-state"), reason) == []
    step(fleet, 20)
    assert values(read(pages, "kube-state"), reason, pod=fleet.pods.pods[0].name, reason="CrashLoopBackOff") == [1]


def test_a_pod_without_room_is_pending_and_unschedulable() -> None:
    fleet = coarse_fleet()
    pages = Pages(fleet)
    fleet.pods.cordoned[:] = True
    fleet.restart(0)
    step(fleet, 30)
    families, name = read(pages, "kube-state"), fleet.pods.pods[0].name
    assert values(families, "kube_pod_status_unschedulable", pod=name) == [1]
    assert value(families, "kube_pod_status_scheduled", pod=name, condition="false") == 1
    assert values(families, "kube_pod_start_time", pod=name) == []
    assert value(families, "kube_pod_info", pod=name, node="") == 1
    assert set(values(families, "kube_node_spec_unschedulable")) == {1}
    (service,) = fleet.spec.services
    assert value(families, "kube_deployment_status_replicas_unavailable", deployment=service.name) == 1


def test_a_silent_node_is_unknown_and_a_full_one_under_pressure() -> None:
    fleet = coarse_fleet()
    pages = Pages(fleet)
    Bent(fleet, ("nodes", "alive", 2, 0.0), ("nodes", "disk_lost_ratio", 3, 0.95))
    step(fleet, 60)
    families = read(pages, "kube-state")

    def status(node: str, condition: str) -> str:
        result = families["kube_node_status_condition"].samples
        (held,) = [
            one.labels["status"]
            for one in result
            if (one.labels["node"], one.labels["condition"], one.value) == (node, condition, 1)
        ]
        return held

    assert [status(f"node-{node}", "Ready") for node in range(4)] == ["true", "true", "unknown", "true"]
    assert [status(f"node-{node}", "DiskPressure") for node in (0, 2, 3)] == ["false", "unknown", "true"]
    taints = {
        (sample.labels["node"], sample.labels["key"].split("/")[1])
        for sample in families["kube_node_spec_taint"].samples
    }
    assert taints == {("node-2", "unreachable"), ("node-3", "disk-pressure")}


@pytest.mark.parametrize(
    ("stuck", "extra", "current_at_max", "gap", "active"),
    [(0, 2, False, 2, "true"), (1, 2, True, 0, "true"), (2, 2, False, 0, "false")],
)
def test_autoscalers_report_desired_replicas_and_their_limits(
    stuck: int, extra: int, current_at_max: bool, gap: int, active: str
) -> None:
    fleet = coarse_fleet()
    Bent(fleet, ("services", "autoscaler_stuck", 0, stuck), ("services", "desired_extra", 0, extra))
    step(fleet, 15)
    families = read(Pages(fleet), "kube-state")
    stem = "kube_horizontalpodautoscaler"
    current = value(families, f"{stem}_status_current_replicas")
    assert (current >= value(families, f"{stem}_spec_max_replicas")) is current_at_max
    assert value(families, f"{stem}_status_desired_replicas") - current == gap
    assert value(families, f"{stem}_status_condition", condition="ScalingActive", status=active) == 1


# --- the gateway --------------------------------------------------------------------------------------


def totals(families: Families) -> dict[tuple[str, str], float]:
    result = families["istio_requests"].samples
    return {(one.labels["response_code"], one.labels["response_flags"]): one.value for one in result}


def test_the_gateway_counts_and_times_each_response_once() -> None:
    fleet = coarse_fleet()
    pages = Pages(fleet)
    before: dict[tuple[str, str], float] = {}
    for turn in range(4):
        step(fleet, 15)
        if turn == 2:
            fleet.crash(0, "test", held=False)  # resets the engine's counters, not the gateway's
        families = read(pages, "istio-gateway")
        now = totals(families)
        assert all(now[key] >= count for key, count in before.items())
        before = now
    assert sum(before.values()) == fleet.traffic.edge.requests.sum()
    assert before["200", "-"] > 0
    assert before["503", "UH"] > 0
    buckets = defaultdict(list)
    for sample in families["istio_request_duration_milliseconds"].samples:
        if sample.name.endswith("_bucket"):
            buckets[sample.labels["response_code"]].append((float(sample.labels["le"]), sample.value))
    for (code, _), count in before.items():
        bounds, reached = zip(*buckets[code], strict=True)
        assert list(bounds) == sorted(bounds)
        assert list(reached) == sorted(reached)
        assert reached[-1] == count
    assert dict(buckets["503"])[1.0] == before["503", "UH"], "requests do not wait for a missing engine"
    assert dict(buckets["200"])[250.0] < before["200", "-"] / 2, "responses take seconds"


def test_a_failing_gateway_returns_503_while_engines_have_less_load() -> None:
    fleet = coarse_fleet()
    pages = Pages(fleet)
    start = totals(read(pages, "istio-gateway"))
    Bent(fleet, ("services", "gateway_error_ratio", 0, 0.8), ("slots", "error_ratio", 0, 1.0))
    step(fleet, 60)
    end = totals(read(pages, "istio-gateway"))
    grown = {code: count - start.get((code, flags), 0.0) for (code, flags), count in end.items()}
    assert grown["503"] > 0.5 * sum(grown.values())
    assert grown["500"] > 0


def test_gateway_rows_name_their_service(quiet: Fleet) -> None:
    (service,) = quiet.spec.services
    text = body(Pages(quiet), "istio-gateway")
    assert "# HELP" not in text
    labels = read(Pages(quiet), "istio-gateway")["istio_requests"].samples[0].labels
    assert labels["reporter"] == "source"
    assert labels["destination_service"] == f"{service.name}.serving.svc.cluster.local"
    assert {"source_workload", "destination_workload", "response_flags", "connection_security_policy"} <= set(labels)
