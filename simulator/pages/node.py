"""The page of node_exporter on one node."""

from __future__ import annotations

import numpy as np

from simulator.fleet import Fleet
from simulator.nodes import FILESYSTEM_BYTES
from simulator.pages.text import Template

_DISK, _NETWORK = {"device": "nvme0n1"}, {"device": "eth0"}
_ROOT = {"device": "/dev/nvme0n1p2", "fstype": "ext4", "mountpoint": "/"}
_PORT = {"device": "mlx5_0", "port": "1"}
_SHARES = {"idle": None, "iowait": 0.004, "irq": 0.0, "nice": 0.0, "softirq": 0.012, "steal": 0.0, "system": 0.21}
_USER_SHARE = 1.0 - sum(share for share in _SHARES.values() if share)
_BUILD_INFO = (
    "A metric with a constant '1' value labeled by version, revision, branch, goversion from which "
    "node_exporter was built, and the goos and goarch for the build."
)
_ZERO_COUNTERS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("node_network_receive_errs_total", "Network device statistic receive_errs.", _NETWORK),
    ("node_network_receive_drop_total", "Network device statistic receive_drop.", _NETWORK),
    ("node_network_transmit_errs_total", "Network device statistic transmit_errs.", _NETWORK),
    ("node_network_transmit_drop_total", "Network device statistic transmit_drop.", _NETWORK),
    (
        "node_infiniband_link_downed_total",
        "Number of times the link failed to recover from an error state and went down",
        _PORT,
    ),
    (
        "node_infiniband_link_error_recovery_total",
        "Number of times the link successfully recovered from an error state",
        _PORT,
    ),
    (
        "node_infiniband_port_errors_received_total",
        "Number of packets containing an error that were received on this port",
        _PORT,
    ),
    (
        "node_pressure_memory_stalled_seconds_total",
        "Total time in seconds no process could make progress due to memory congestion",
        {},
    ),
    ("node_pressure_memory_waiting_seconds_total", "Total time in seconds that processes have waited for memory", {}),
)


class NodePages:
    """Writes the page of any node."""

    def __init__(self) -> None:
        self._templates: dict[int, Template] = {}

    def page(self, fleet: Fleet, node: int) -> bytes:
        """The page of a node."""
        if node not in self._templates:
            self._templates[node] = _template(fleet, node)
        return self._templates[node].render(_numbers(fleet, node))


def _numbers(fleet: Fleet, node: int) -> list[float]:
    """In the order of the template's columns: scalars, then CPU seconds by CPU and mode."""
    hosts = fleet.nodes
    cpus, memory = int(hosts.cpus[node]), float(hosts.memory_bytes[node])
    available = np.rint(memory * hosts.memory_available_ratio[node] / 4096) * 4096
    load = float(hosts.cpu_busy_ratio[node]) * cpus
    scalars = [
        round(load, 2),
        float(available),
        float(np.rint(available * 0.6 / 4096) * 4096),
        float(np.rint(available * 0.38 / 4096) * 4096),
        float(np.rint(FILESYSTEM_BYTES * hosts.filesystem_available_ratio[node])),
        round(float(hosts.disk_seconds[node]), 3),
        round(float(hosts.disk_seconds[node]) * 0.05, 6),
        float(np.rint(hosts.received_bytes[node])),
        float(np.rint(hosts.sent_bytes[node])),
        round(float(hosts.clock_offset[node]), 9),
        fleet.at,
        round(float(hosts.busy_seconds[node]) * 0.01, 6),
    ]
    # CPUs differ a little for ever, so that each one's counters only grow.
    tilt = 1.0 + 0.1 * np.sin(np.arange(cpus))
    tilt /= tilt.mean()
    busy = float(hosts.busy_seconds[node]) / cpus * tilt
    total = (float(hosts.busy_seconds[node]) + float(hosts.idle_seconds[node])) / cpus
    modes = [total - busy if share is None else busy * share for share in _SHARES.values()]
    modes.append(busy * _USER_SHARE)
    return scalars + np.round(np.stack(modes, axis=1), 2).ravel().tolist()


def _template(fleet: Fleet, node: int) -> Template:
    hosts, page = fleet.nodes, Template()
    cpus = int(hosts.cpus[node])
    gauges: tuple[tuple[str, str, str, dict[str, str], int], ...] = (
        ("node_load1", "gauge", "1m load average.", {}, 0),
        ("node_load5", "gauge", "5m load average.", {}, 0),
        ("node_load15", "gauge", "15m load average.", {}, 0),
        ("node_memory_MemAvailable_bytes", "gauge", "Memory information field MemAvailable_bytes.", {}, 1),
        ("node_memory_MemFree_bytes", "gauge", "Memory information field MemFree_bytes.", {}, 2),
        ("node_memory_Cached_bytes", "gauge", "Memory information field Cached_bytes.", {}, 3),
        ("node_filesystem_avail_bytes", "gauge", "Filesystem space available to non-root users in bytes.", _ROOT, 4),
        ("node_filesystem_free_bytes", "gauge", "Filesystem free space in bytes.", _ROOT, 4),
        ("node_disk_io_time_seconds_total", "counter", "Total seconds spent doing I/Os.", _DISK, 5),
        (
            "node_pressure_io_stalled_seconds_total",
            "counter",
            "Total time in seconds no process could make progress due to IO congestion",
            {},
            6,
        ),
        (
            "node_pressure_cpu_waiting_seconds_total",
            "counter",
            "Total time in seconds that processes have waited for CPU time",
            {},
            11,
        ),
        ("node_network_receive_bytes_total", "counter", "Network device statistic receive_bytes.", _NETWORK, 7),
        ("node_network_transmit_bytes_total", "counter", "Network device statistic transmit_bytes.", _NETWORK, 8),
        ("node_timex_offset_seconds", "gauge", "Time offset in between local system and reference clock.", {}, 9),
        ("node_time_seconds", "gauge", "System time in seconds since epoch (1970).", {}, 10),
    )
    page.family("node_cpu_seconds_total", "counter", "Seconds the CPUs spent in each mode.")
    modes = (*_SHARES, "user")
    scalars = 12
    for cpu in range(cpus):
        for number, mode in enumerate(modes):
            page.sample("node_cpu_seconds_total", {"cpu": str(cpu), "mode": mode}, scalars + cpu * len(modes) + number)
    for name, kind, text, pairs, column in gauges:
        page.family(name, kind, text)
        page.sample(name, pairs, column)
    for name, text, pairs in _ZERO_COUNTERS:
        page.family(name, "counter", text)
        page.fixed(name, pairs, 0.0)
    _constants(page, fleet, node)
    return page


def _constants(page: Template, fleet: Fleet, node: int) -> None:
    hosts = fleet.nodes
    fixed: tuple[tuple[str, str, str, dict[str, str], float], ...] = (
        (
            "node_memory_MemTotal_bytes",
            "gauge",
            "Memory information field MemTotal_bytes.",
            {},
            hosts.memory_bytes[node],
        ),
        ("node_filesystem_size_bytes", "gauge", "Filesystem size in bytes.", _ROOT, FILESYSTEM_BYTES),
        ("node_filesystem_readonly", "gauge", "Filesystem read-only status.", _ROOT, 0.0),
        (
            "node_infiniband_state_id",
            "gauge",
            "State of the InfiniBand port (0: no change, 1: down, 2: init, 3: armed, 4: active, 5: act defer)",
            _PORT,
            4.0,
        ),
        ("node_vmstat_oom_kill", "untyped", "/proc/vmstat information field oom_kill.", {}, 0.0),
        ("node_timex_sync_status", "gauge", "Is clock synchronized to a reliable server (1 = yes, 0 = no).", {}, 1.0),
        ("node_boot_time_seconds", "gauge", "Node boot time, in unixtime.", {}, hosts.boot[node]),
        (
            "node_uname_info",
            "gauge",
            "Labeled system information as provided by the uname system call.",
            {
                "domainname": "(none)",
                "machine": "x86_64",
                "nodename": hosts.names[node],
                "release": "6.8.0-87-generic",
                "sysname": "Linux",
                "version": "#88-Ubuntu SMP",
            },
            1.0,
        ),
        (
            "node_exporter_build_info",
            "gauge",
            _BUILD_INFO,
            {"branch": "HEAD", "goarch": "amd64", "goos": "linux", "goversion": "go1.24.6", "version": "1.10.2"},
            1.0,
        ),
    )
    for name, kind, text, pairs, value in fixed:
        page.family(name, kind, text)
        page.fixed(name, pairs, float(value))
