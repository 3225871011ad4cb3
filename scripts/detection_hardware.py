"""Pictures of docs/explanation/detection/hardware.md: devices, ports, hosts and pods of the simulated fleet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from detection_lives import Life, Planned, of_fleet
from detection_panels import COLOURS, LIMIT, Panel, bands, grid, struck
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

from detectors.load.saturation import KV_FULL_RATIO
from detectors.platform.scrape_targets import NAMESPACE
from outrider.model import EntityKind


def hardware(_: Path | None) -> Figure:
    """Hard faults of devices and ports."""
    plan = [
        Planned("gpu-ecc-uncorrectable", 6, 8, None),
        Planned("gpu-thermal-throttle", 8, 14, None),
        Planned("gpu-power-throttle", 16, 12, None),
        Planned("nvlink-degraded", 10, 8, None),
        Planned("ib-link-down", 20, 6, "node-7"),
        Planned("exporter-down", 24, 6, "node-6"),
    ]
    life = of_fleet(plan, 36, ("gpu-faults", "node-faults", "port-faults", "power-cap", "targets", "device-memory"))
    return grid(
        [
            struck(
                life,
                "uncorrectable errors, new in a scrape",
                "gpu-ecc-uncorrectable",
                "hw_accel_ecc_uncorrectable_total",
            ),
            struck(life, "temperature, held down by heat (C)", "gpu-thermal-throttle", "hw_accel_temperature_celsius"),
            struck(
                life, "clock, power limit lowered (GHz)", "gpu-power-throttle", "hw_accel_core_clock_hertz", scale=1e-9
            ),
            struck(life, "link errors, new in a scrape", "nvlink-degraded", "hw_accel_interconnect_errors_total"),
            struck(life, "a port of a node (1 = up)", "ib-link-down", "hw_link_up"),
            replace(
                struck(life, "devices that the node's page shows", "exporter-down", "hw_accel_present"), from_zero=True
            ),
        ],
        3,
    )


def power(_: Path | None) -> Figure:
    """Power against the work of one class's cards, and one of them whose limit is lowered."""
    life = of_fleet([Planned("gpu-power-throttle", 50, 14, None)], 72, ("power-draw",))
    held, (begin, end) = life.truths["gpu-power-throttle"]
    above = set(life.topology.above(held, EntityKind.SERVICE))
    cards = [card for card in life.topology.of_kind(EntityKind.GPU) if above & set(life.topology.affected_by(card))]
    figure, (work, course) = plt.subplots(1, 2, figsize=(9.4, 2.6), layout="constrained")
    for card in cards:
        times, watts = life.series("hw_accel_power_watts", [card])
        busy = life.series("hw_accel_utilization_ratio", [card])[1]
        low = (card == held) & (times > begin + 1) & (times <= end)
        work.scatter(busy[~low][::8], watts[~low][::8], s=5, color=COLOURS[0], alpha=0.4, lw=0)
        work.scatter(busy[low], watts[low], s=6, color=LIMIT, lw=0)
    work.set_title("power (W) by utilisation: cards of one class, one of them held down")
    work.set_xlabel("share of the time in which the card had work")
    bands(course, [(begin, end)], life.spans("power-draw", entity=held))
    course.plot(*life.series("hw_accel_power_watts", [held]), color=COLOURS[0])
    course.set_title("its power (W); grey: limit lowered, orange: told")
    course.set_xlabel("minutes")
    course.margins(x=0.01)
    return figure


def memory_use(_: Path | None) -> Figure:
    """Memory of a card that grows beside its cache, and what its cache does meanwhile."""
    life = of_fleet([Planned("gpu-memory-leak", 66, 24, "chat-70b-1")], 94, ("memory-use",))
    replica, span = life.truths["gpu-memory-leak"]
    leak = _memory(life, "gpu-memory-leak")
    card = next(one.entity for _, one in life.found)
    times, edge = life.edge("memory-use", entity=card)
    cache = life.series("engine_kv_cache_usage_ratio", [replica])
    return grid(
        [
            replace(
                leak,
                title="memory in use (GB): more than the cache explains",
                found=life.spans("memory-use", entity=card),
                limit=(times, 1e-9 * edge),
            ),
            Panel("KV cache of its engine, in use", {"": cache}, [span]),
        ],
        2,
    )


def targets(_: Path | None) -> Figure:
    """Pages that end: one exporter, a whole node, and our own sight; and a page that stands still."""
    plan = [
        Planned("exporter-down", 6, 8, "node-6"),
        Planned("stale-metrics", 6, 10, "node-1"),
        Planned("node-lost", 22, 10, "node-3"),
        Planned("monitor-blind", 42, 6, None),
    ]
    life = of_fleet(plan, 54, ("targets",))
    posts = [one for one, signal in life.values if signal == "target_up" and one.namespace == NAMESPACE]
    up = np.stack([life.series("target_up", [post])[1] for post in posts])
    times = life.series("target_up", posts[:1])[0]
    nodes = np.array([life.topology.label(post, "node") for post in posts])

    def answering(fault: str, rows: NDArray[np.bool_], text: str) -> Panel:
        begin, end = life.truths[fault][1]
        lines = {"": (times, np.nansum(up[rows], axis=0))}
        return Panel(text, lines, [(begin, end)], life.spans(fault), shown=(begin - 4, end + 4), from_zero=True)

    whole = np.ones(len(posts), dtype=np.bool_)
    return grid(
        [
            answering("exporter-down", nodes == "node-6", "pages of node-6 that answer: an exporter is down"),
            answering("node-lost", nodes == "node-3", "pages of node-3 that answer: the node is lost"),
            answering("monitor-blind", whole, "all pages that answer: our own sight"),
            answering("stale-metrics", nodes == "node-1", "pages of node-1 that answer: one stands still"),
        ],
        2,
    )


def hosts(_: Path | None) -> Figure:
    """Hosts, containers and pods."""
    plan = [
        Planned("disk-full", 6, 12, "node-0"),
        Planned("noisy-neighbour", 8, 14, "node-1"),
        Planned("clock-skew", 20, 10, "node-2"),
        Planned("cpu-throttled", 12, 10, "chat-70b-7"),
        Planned("host-memory-leak", 10, 24, "chat-70b-3"),
        Planned("crash-loop", 22, 12, "chat-70b-5"),
    ]
    names = ("host-faults", "neighbours", "container-faults", "pod-faults", "startups", "liveness")
    life = of_fleet(plan, 38, names)
    return grid(
        [
            struck(life, "free share of a file system", "disk-full", "node_filesystem_available_ratio"),
            replace(
                struck(
                    life, "CPU of a host, and the most it may take", "noisy-neighbour", "node_cpu_utilization_ratio"
                ),
                limit=life.edge("noisy-neighbour"),
            ),
            struck(life, "clock of a host, off by (s)", "clock-skew", "node_clock_offset_seconds"),
            struck(life, "share of time held at the CPU limit", "cpu-throttled", "container_cpu_throttled_ratio"),
            struck(
                life, "memory of a container (GB)", "host-memory-leak", "container_memory_working_set_bytes", scale=1e-9
            ),
            struck(life, "restarts of a pod", "crash-loop", "pod_restarts"),
        ],
        3,
    )


def memory(_: Path | None) -> Figure:
    """A leak, a warm-up that is none, and a cache under pressure whose card holds what it held."""
    plan = [
        Planned("gpu-memory-leak", 24, 13, "chat-70b-1"),
        Planned("memory-warm-up", 24, 14, "chat-70b-3"),
        Planned("kv-pressure", 28, 10, "chat-70b-5"),
    ]
    life = of_fleet(plan, 46, ("device-memory", "saturation"))
    times, edge = life.edge("gpu-memory-leak")
    leak, warm, held = (_memory(life, one.fault) for one in plan)
    full = struck(life, "KV cache in use: blocks are not given back", "kv-pressure", "engine_kv_cache_usage_ratio")
    return grid(
        [
            replace(leak, title="memory in use (GB): a leak beside the engine's share", limit=(times, 1e-9 * edge)),
            replace(warm, title="memory in use (GB): a new process warms up"),
            replace(full, limit=KV_FULL_RATIO),
            replace(held, title="memory in use (GB) of that replica's card", from_zero=True),
        ],
        2,
    )


def _memory(life: Life, fault: str) -> Panel:
    """Memory of the card of a struck replica that moved most."""
    replica, span = life.truths[fault]
    cards = life.topology.below(replica, EntityKind.GPU)
    every = [life.series("hw_accel_memory_used_bytes", [card]) for card in cards]
    times, values = max(every, key=lambda one: float(np.ptp(one[1][np.isfinite(one[1])])))
    return Panel("", {"": (times, 1e-9 * values)}, [span], life.spans(fault))


FIGURES = {
    "memory": memory,
    "hardware": hardware,
    "power": power,
    "memoryuse": memory_use,
    "targets": targets,
    "hosts": hosts,
}
