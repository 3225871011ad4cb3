"""The page of node_exporter on one node."""

from __future__ import annotations

from functools import cache

import numpy as np

from outrider.model import Floats
from simulator.exporters.text import Template, families, go_number, header, labels
from simulator.fleet import Fleet
from simulator.hardware.gpus import ambient_celsius
from simulator.hardware.nodes import FILESYSTEM_BYTES

_LABELS = {
    "disk": {"device": "nvme0n1"},
    "controller": {"controller": "0"},
    "root": {"device": "/dev/nvme0n1p2", "fstype": "ext4", "mountpoint": "/"},
    "sensor": {"chip": "platform_coretemp_0", "sensor": "temp1"},
    "port": {"device": "mlx5_0", "port": "1"},
    "ethernet": {"device": "eth0"},
}
_SHARES = {"idle": None, "iowait": 0.004, "irq": 0.0, "nice": 0.0, "softirq": 0.012, "steal": 0.0, "system": 0.21}
_USER_SHARE = 1.0 - sum(share for share in _SHARES.values() if share)
_MODES = (*_SHARES, "user")
_ACTIVE, _DOWN = 4.0, 1.0  # states of an InfiniBand port
_SYNCED_SECONDS = 0.016  # chrony reports a larger offset as unsynchronised
_PAGE_BYTES = 4096.0
_BUILD_INFO = (
    "A metric with a constant '1' value labeled by version, revision, branch, goversion from which "
    "node_exporter was built, and the goos and goarch for the build."
)


class NodePages:
    """Writes the page of any node. All pages at one time share one table of the hosts' numbers."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._rows: list[list[float]] = []
        self._heads: dict[int, bytes] = {}

    def page(self, fleet: Fleet, node: int) -> bytes:
        """Returns the page of a node."""
        if self._at != fleet.at:
            table = numbers(fleet)
            self._rows = np.stack([table[family.value] for family in families("node.yaml")], axis=1).tolist()
            self._at = fleet.at
        if node not in self._heads:
            self._heads[node] = _facts(fleet.nodes.names[node])
        cpus = int(fleet.nodes.cpus[node])
        return self._heads[node] + _template(cpus).render(self._rows[node] + _cpu_seconds(fleet, node, cpus))


def numbers(fleet: Fleet) -> dict[str, Floats]:
    """Returns all values except the CPUs, each of shape (nodes,), by the names of the table of families."""
    hosts = fleet.nodes
    available = np.rint(hosts.memory_bytes * hosts.memory_available_ratio / _PAGE_BYTES) * _PAGE_BYTES
    return {
        "zero": np.zeros(hosts.size),
        "boot": hosts.boot,
        "now": np.round(fleet.at + hosts.clock_offset, 6),
        "clock_offset": np.round(hosts.clock_offset, 9),
        "clock_synced": (np.abs(hosts.clock_offset) < _SYNCED_SECONDS).astype(np.float64),
        "load": np.round(hosts.cpu_busy_ratio * hosts.cpus, 2),
        "memory_total": hosts.memory_bytes,
        "memory_available": available,
        "memory_free": np.rint(available * 0.6 / _PAGE_BYTES) * _PAGE_BYTES,
        "memory_cached": np.rint(available * 0.38 / _PAGE_BYTES) * _PAGE_BYTES,
        "oom_kills": np.floor(hosts.oom_kills),
        "open_files": 4096.0 + 64.0 * np.rint(hosts.cpu_busy_ratio * hosts.cpus),
        "inside_celsius": _inside_celsius(fleet),
        "memory_waiting": np.round(1.5 * hosts.memory_pressure_seconds, 6),
        "memory_stalled": np.round(hosts.memory_pressure_seconds, 6),
        "disk_available": np.rint(FILESYSTEM_BYTES * hosts.filesystem_available_ratio),
        "disk_size": np.full(hosts.size, FILESYSTEM_BYTES),
        "disk_seconds": np.round(hosts.disk_seconds, 3),
        "io_stalled": np.round(hosts.io_pressure_seconds, 6),
        "io_waiting": np.round(1.4 * hosts.io_pressure_seconds, 6),
        "cpu_waiting": np.round(hosts.cpu_pressure_seconds, 6),
        **_network(fleet),
    }


def _network(fleet: Fleet) -> dict[str, Floats]:
    hosts = fleet.nodes
    return {
        "received_bytes": np.rint(hosts.received_bytes),
        "sent_bytes": np.rint(hosts.sent_bytes),
        "receive_errors": np.floor(hosts.receive_errors),
        "receive_drops": np.floor(hosts.receive_drops),
        "transmit_drops": np.floor(hosts.transmit_drops),
        "retransmits": np.floor(hosts.tcp_retransmits),
        "connections": 800.0 + 40.0 * np.rint(hosts.cpu_busy_ratio * hosts.cpus),
        "port_state": np.where(hosts.port_up, _ACTIVE, _DOWN),
        "port_errors": np.floor(hosts.rdma_errors),
        "links_downed": np.floor(hosts.link_downs),
        "link_recoveries": np.floor(0.05 * hosts.rdma_errors),
    }


def _inside_celsius(fleet: Fleet) -> Floats:
    """Returns the chassis air temperature, which follows the warmest device."""
    hottest = np.full(fleet.nodes.size, -np.inf)
    np.maximum.at(hottest, fleet.gpus.node, fleet.gpus.temperature)
    ambient = ambient_celsius(fleet.at)
    return np.asarray(np.round(ambient + 0.3 * (hottest - ambient) + 12.0 * fleet.nodes.cpu_busy_ratio, 1))


def _cpu_seconds(fleet: Fleet, node: int, cpus: int) -> list[float]:
    """Returns seconds by CPU and mode, in the order of the template."""
    hosts = fleet.nodes
    busy = float(hosts.busy_seconds[node]) / cpus * _tilt(cpus)
    total = (float(hosts.busy_seconds[node]) + float(hosts.idle_seconds[node])) / cpus
    modes = [total - busy if share is None else busy * share for share in _SHARES.values()]
    modes.append(busy * _USER_SHARE)
    result: list[float] = np.round(np.stack(modes, axis=1), 2).ravel().tolist()
    return result


@cache
def _tilt(cpus: int) -> Floats:
    """Returns a small constant difference per CPU, so that the counters stay monotonic."""
    tilt = 1.0 + 0.1 * np.sin(np.arange(cpus))
    return np.asarray(tilt / tilt.mean(), dtype=np.float64)


@cache
def _template(cpus: int) -> Template:
    """Returns the template of hosts with ``cpus`` CPUs, built once."""
    page, listed = Template(), families("node.yaml")
    page.family("node_cpu_seconds_total", "counter", "Seconds the CPUs spent in each mode.")
    for cpu in range(cpus):
        for number, mode in enumerate(_MODES):
            column = len(listed) + cpu * len(_MODES) + number
            page.sample("node_cpu_seconds_total", {"cpu": str(cpu), "mode": mode}, column)
    for column, family in enumerate(listed):
        page.family(family.name, family.kind, family.text)
        page.sample(family.name, _LABELS[family.needs[0]] if family.needs else {}, column)
    return page


def _facts(name: str) -> bytes:
    """Returns lines about the host and the exporter whose value is always 1."""
    built = {"branch": "HEAD", "goarch": "amd64", "goos": "linux", "goversion": "go1.24.6", "version": "1.10.2"}
    uname = {
        "domainname": "(none)",
        "machine": "x86_64",
        "nodename": name,
        "release": "6.8.0-87-generic",
        "sysname": "Linux",
        "version": "#88-Ubuntu SMP",
    }
    about = "Labeled system information as provided by the uname system call."
    parts = (("node_exporter_build_info", _BUILD_INFO, built), ("node_uname_info", about, uname))
    return "".join(
        f"{header(family, 'gauge', text)}{family}{labels(pairs)} {go_number(1.0)}\n" for family, text, pairs in parts
    ).encode()
