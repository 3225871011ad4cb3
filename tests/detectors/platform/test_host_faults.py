from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from detector_events import event_at, log_event  # type: ignore[import-not-found]

from detectors.platform.host_faults import HostFaultDetector
from detectors.platform.noisy_neighbor import NoisyNeighborDetector
from outrider.model import EntityKind, EntityRef

NODE = EntityRef("lab", EntityKind.NODE, None, "n0")


@pytest.fixture
def find(window_of, findings_of):
    def run(columns, events=()):
        window = window_of(
            EntityKind.NODE, {"n0": {"node_clock_offset_seconds": [0.0] * _length(columns)} | columns}, events=events
        )
        return [item.fault for item in findings_of(HostFaultDetector(), window)]

    return run


def _length(columns):
    return max((len(values) for values in columns.values()), default=20)


def test_a_healthy_host_has_no_finding(find):
    assert find({}) == []
    assert find({"node_filesystem_available_ratio": [0.6] * 20, "node_network_errors_per_second": [0.0] * 20}) == []


@pytest.mark.parametrize(("left", "fault"), [(0.01, True), (0.08, False), (None, False)])
def test_low_free_space_is_a_full_disk(find, left, fault):
    assert find({"node_filesystem_available_ratio": [0.5] * 10 + [left] * 3}) == ["disk-full"] * fault


def test_a_kubelet_disk_condition_lasts_until_it_is_cleared(find):
    short = {"node_filesystem_available_ratio": [0.5] * 10 + [0.08] * 10}
    pressure, eased = event_at(NODE, "NodeHasDiskPressure", 40), event_at(NODE, "NodeHasNoDiskPressure", 60)
    assert find(short, [pressure]) == ["disk-full"]
    assert find(short, [pressure, eased]) == []
    assert find({"node_filesystem_available_ratio": [0.5] * 20}, [pressure]) == [], "there is room again"
    assert find({}, [pressure]) == ["disk-full"], "nobody tells the room"


def test_a_disk_io_timeout_is_a_slow_disk(find):
    line = log_event(NODE, "disk-error", 20, "nvme nvme0: I/O tag 1 timeout, aborting")
    assert find({}, [line]) == ["disk-slow"]
    assert find({}, [log_event(NODE, "machine-check", 20)]) == []


def test_a_slow_disk_is_fast_again_once_it_carries_a_full_load_without_stalls(find):
    line = log_event(NODE, "disk-error", 20, "nvme nvme0: I/O tag 1 timeout, aborting")

    def after(busy, stall):
        columns = {"node_disk_busy_ratio": [1.0] * 5 + busy, "node_io_stall_ratio": [0.5] * 5 + stall}
        return find(columns, [line])

    assert after([0.95] * 18, [0.0] * 18) == []
    assert after([0.95] * 10, [0.0] * 10) == ["disk-slow"], "not for long enough"
    assert after([0.0] * 18, [0.0] * 18) == ["disk-slow"], "an idle disk proves nothing"
    assert after([0.4] * 18, [0.0] * 18) == ["disk-slow"], "light use stalls on no disk"
    assert after([0.95] * 18, [0.0] * 10 + [0.3] + [0.0] * 7) == ["disk-slow"]
    assert after([None] * 18, [None] * 18) == ["disk-slow"], "no values prove nothing"


@pytest.mark.parametrize(
    ("logged_at", "stall", "score"),
    [([200, 280], 0.0, 0.9), ([20, 100], 0.0, 0.5), ([20], 0.0, 0.5), ([280], 0.0, 0.75), ([20, 100], 0.3, 0.9)],
)
def test_a_disk_without_stalls_and_new_lines_is_hardly_slow_any_more(window_of, findings_of, logged_at, stall, score):
    columns = {"node_disk_busy_ratio": [0.2] * 61, "node_io_stall_ratio": [stall] * 61}
    lines = [log_event(NODE, "disk-error", at, f"nvme nvme0: I/O tag {at} timeout, aborting") for at in logged_at]
    window = window_of(EntityKind.NODE, {"n0": columns}, events=lines)
    (found,) = findings_of(HostFaultDetector(), window)
    assert (found.fault, found.score) == ("disk-slow", score)


def test_a_busy_disk_is_slow_only_if_it_lasts(find):
    busy = {"node_disk_busy_ratio": [0.0] * 3 + [1.0] * 60, "node_io_stall_ratio": [0.0] * 3 + [0.5] * 60}
    assert find(busy) == []
    assert find({name: [0.0] * 3 + values[-1:] * 110 for name, values in busy.items()}) == ["disk-slow"]


@pytest.mark.parametrize(("offset", "fault"), [(0.3, True), (-2.0, True), (0.01, False)])
def test_a_lasting_clock_offset_is_clock_skew(find, offset, fault):
    assert find({"node_clock_offset_seconds": [0.0] * 5 + [offset] * 15}) == ["clock-skew"] * fault
    assert find({"node_clock_offset_seconds": [0.0] * 18 + [offset] * 2}) == []


def test_network_loss_is_the_ratio_of_errors_to_traffic(find):
    few = {"node_network_bytes_per_second": [1e6] * 20, "node_network_errors_per_second": [0.0] * 5 + [40.0] * 15}
    assert find(few) == ["network-loss"]
    assert find(few | {"node_network_bytes_per_second": [1e9] * 20}) == []


def test_a_sensor_alarm_counts_for_half_an_hour(find):
    line = log_event(NODE, "sensor-alarm", 20, "ipmi: Power Supply 2 failure detected")
    columns = {"node_clock_offset_seconds": [0.0] * 300}
    assert find(columns, [line]) == ["psu-or-fan-failed"]
    assert find({"node_clock_offset_seconds": [0.0] * 400}, [line]) == []


def test_a_sensor_alarm_ends_with_the_line_of_the_same_sensor(find):
    columns = {"node_clock_offset_seconds": [0.0] * 30}
    supply = log_event(NODE, "sensor-alarm", 20, "Power Supply 2 failure detected", sensor="Power Supply 2")
    fan = log_event(NODE, "sensor-alarm", 40, "Fan 4 lower critical", sensor="Fan 4")
    fan_ok = log_event(NODE, "sensor-ok", 60, "Fan 4 deasserted", sensor="Fan 4")
    supply_ok = log_event(NODE, "sensor-ok", 80, "Power Supply 2 deasserted", sensor="power supply 2")
    assert find(columns, [supply, fan, fan_ok]) == ["psu-or-fan-failed"]
    assert find(columns, [supply, fan, fan_ok, supply_ok]) == []
    assert find(columns, [supply, log_event(NODE, "sensor-ok", 60, "SEL: returned to normal")]) == []
    assert find(columns, [supply, supply_ok, log_event(NODE, "sensor-alarm", 100, "again")]) == ["psu-or-fan-failed"]


def test_a_sensor_alarm_of_a_quarter_of_an_hour_ago_ends_with_its_line(find):
    supply = log_event(NODE, "sensor-alarm", 20, "Power Supply 2 failure detected", sensor="Power Supply 2")
    late = log_event(NODE, "sensor-ok", 900, "Power Supply 2 deasserted", sensor="Power Supply 2")
    columns = {"node_clock_offset_seconds": [0.0] * 200}
    assert find(columns, [supply]) == ["psu-or-fan-failed"]
    assert find(columns, [supply, late]) == []


def test_no_values_and_a_single_scrape_give_no_finding(find):
    assert find({"node_clock_offset_seconds": [None] * 4}) == []
    assert find({"node_filesystem_available_ratio": [0.0], "node_clock_offset_seconds": [9.0]}) == []


@pytest.fixture
def taken(window_of, findings_of):
    def run(ends, disk=0.0):
        rows = {
            f"n{place}": {
                "node_cpu_utilization_ratio": [0.1] * 60 + [end] * 40,
                "node_disk_busy_ratio": [0.0] * 60 + [disk] * 40,
            }
            for place, end in enumerate(ends)
        }
        findings = findings_of(NoisyNeighborDetector(), window_of(EntityKind.NODE, rows))
        return [(item.fault, item.entity.name) for item in findings]

    return run


def test_cpu_rising_on_one_host_is_a_noisy_neighbour(taken):
    assert taken([0.7, 0.1, 0.1]) == [("noisy-neighbour", "n0")]
    assert taken([0.3, 0.1, 0.1]) == []


def test_cpu_rising_on_all_hosts_or_with_disk_load_is_not_a_noisy_neighbour(taken):
    assert taken([0.7, 0.7, 0.7]) == []
    assert taken([0.7, 0.1, 0.1], disk=0.8) == []


@pytest.mark.parametrize("calm", [50, 200])
def test_a_neighbour_does_not_become_usual_while_it_stays(window_of, findings_of, calm):
    """An engine that started minutes ago has a short baseline, which its values of now must not fill."""
    rows = {
        name: {
            "node_cpu_utilization_ratio": [0.3] * calm + [end] * 120,
            "node_disk_busy_ratio": [0.0] * (calm + 120),
        }
        for name, end in (("a", 0.8), ("b", 0.3), ("c", 0.3))
    }
    findings = findings_of(NoisyNeighborDetector(), window_of(EntityKind.NODE, rows))
    assert [(item.fault, item.entity.name) for item in findings] == [("noisy-neighbour", "a")]


def test_high_cpu_without_a_baseline_has_no_finding(window_of, findings_of):
    rows = {name: {"node_cpu_utilization_ratio": [level] * 30} for name, level in (("a", 0.9), ("b", 0.1), ("c", 0.1))}
    assert findings_of(NoisyNeighborDetector(), window_of(EntityKind.NODE, rows)) == []
