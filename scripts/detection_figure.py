"""Draw the pictures of docs/explanation/detection/: what detectors look at, and when they speak.

Usage: python scripts/detection_figure.py [--data FOLDER] [--out FOLDER] [--png FOLDER] [NAME ...]

Recordings are those of tests/recordings; ``--data`` is a folder with ``recordings/vllm-0.32.0`` and ``data/servers``
for the pictures that need more. Simulated pictures say so. The same input gives the same file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from detection_lives import Life, Planned, Series, near, of_fleet, of_recording
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from detectors.baseline import Baseline
from detectors.burnrate import compile_slos
from outrider import catalog
from outrider.model import EntityKind, SignalKey
from outrider.slo import Slo
from service.backtests import recordings

ROOT = Path(__file__).resolve().parent.parent
STYLE = {
    "font.size": 8, "axes.titlesize": 9, "axes.titlelocation": "left", "axes.spines.top": False,
    "axes.spines.right": False, "svg.fonttype": "none", "svg.hashsalt": "outrider", "legend.frameon": False,
    "legend.fontsize": 7, "lines.linewidth": 1.2, "font.family": "sans-serif",
}  # fmt: skip
TRUE, FOUND, COLOURS = "#e3e5e8", "#f3b58f", ("#30506e", "#2a8c6f", "#8a5fa8", "#b08b2e")
Span = tuple[float, float]
RECORDED = ROOT / "tests" / "recordings"


@dataclass(frozen=True, slots=True)
class Panel:
    """One little plot: lines by label, what was true (grey) and what was said (orange)."""

    title: str
    lines: Mapping[str, Series]
    true: Sequence[Span] = ()
    found: Sequence[Span] = ()
    limit: float | None = None
    log: bool = False


def grid(panels: Sequence[Panel], columns: int, unit: str = "minutes") -> Figure:
    """Panels side by side, the legend of the bands once."""
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(9.4, 1.75 * rows + 0.5), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, panel in zip(axes.flat, panels, strict=False):
        for band, colour in ((panel.true, TRUE), (panel.found, FOUND)):
            for begin, end in band:
                high = (0.0, 1.0) if colour == TRUE else (0.0, 0.12)
                axis.axvspan(begin, end, *high, color=colour, lw=0, zorder=0)
        for (label, (times, values)), colour in zip(panel.lines.items(), COLOURS, strict=False):
            axis.plot(times, values, color=colour, label=label, drawstyle="default")
        if panel.limit is not None:
            axis.axhline(panel.limit, color="#c2410c", lw=0.9, ls="--")
        if panel.log:
            axis.set_yscale("symlog")
            axis.set_ylim(bottom=0)
        axis.set_title(panel.title)
        axis.margins(x=0.01)
        if len(panel.lines) > 1:
            axis.legend(loc="best")
    for axis in axes[-1]:
        axis.set_xlabel(unit)
    bands = [plt.Rectangle((0, 0), 1, 1, color=TRUE), plt.Rectangle((0, 0), 1, 1, color=FOUND)]
    figure.legend(bands, ["true", "found"], loc="outside upper right", ncols=2)
    return figure


# --- recordings of a real engine -----------------------------------------------------------------------


@cache
def recorded(name: str) -> Life:
    """A recording of tests/recordings, watched by every detector."""
    return of_recording(RECORDED / name)


def liveness(_: Path | None) -> Figure:
    """A hang under load, a hang at an idle instant, a kill, an engine put to sleep."""
    hang, idle = recorded("i_hang.metrics.jsonl.gz"), recorded("n_fleet_hang")
    kill, sleep = recorded("g_sigkill.metrics.jsonl.gz"), recorded("l_sleep.metrics.jsonl.gz")
    still = [(65 / 60, 140 / 60)]
    tokens = idle.series("engine_generation_tokens_total", name="replica-1")
    files = idle.series("engine_open_files", name="replica-1")
    return grid(
        [
            Panel(
                "hung under load: in flight climbs, no tokens (i_hang)",
                {
                    "in flight": hang.series("engine_inflight_requests"),
                    "tokens / scrape": hang.series("engine_generation_tokens_total"),
                },
                still,
                hang.spans("engine-hung"),
                log=True,
            ),
            Panel(
                "hung at an idle instant: open files of replica-1 climb (n_fleet_hang)",
                {"open files": files, "tokens / scrape": tokens},
                found=idle.spans("engine-hung"),
                log=True,
            ),
            Panel(
                "killed, back after 66 s (g_sigkill)",
                {"up": kill.series("engine_up")},
                [(60 / 60, 131 / 60)],
                kill.spans("engine-dead"),
            ),
            Panel(
                "put to sleep: /health 200, in flight climbs (l_sleep)",
                {
                    "in flight": sleep.series("engine_inflight_requests"),
                    "tokens / scrape": sleep.series("engine_generation_tokens_total"),
                },
                [(50 / 60, 110 / 60)],
                sleep.spans("engine-asleep"),
                log=True,
            ),
        ],
        2,
    )


def saturation(_: Path | None) -> Figure:
    """A ramp beyond what the engine can do: a queue, a full cache, and late first tokens."""
    ramp = recorded("c_ramp.metrics.jsonl.gz")
    said = ramp.spans("saturation", "surge")
    return grid(
        [
            Panel(
                "requests, with a ramp of the load (c_ramp)",
                {"waiting": ramp.series("engine_requests_waiting"), "running": ramp.series("engine_requests_running")},
                found=said,
            ),
            Panel("TTFT, 90 % (s)", {"": ramp.series("engine_ttft_seconds:0.9")}, found=said, limit=2.0),
            Panel("KV cache in use", {"": ramp.series("engine_kv_cache_usage_ratio")}, found=said, limit=0.95),
            Panel("tokens / scrape: they flow", {"": ramp.series("engine_generation_tokens_total")}, found=said),
        ],
        2,
    )


def slowness(_: Path | None) -> Figure:
    """The time of a step against the batch it was made for, of two recordings without any fault."""
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 2.6), layout="constrained", sharey=True)
    for axis, name in zip(axes, ("b_steady", "c_ramp"), strict=True):
        life = recorded(f"{name}.metrics.jsonl.gz")
        batch, step = life.series("engine_requests_running"), life.mean("engine_itl_seconds")
        inside = (batch[0][None, :] <= step[0][:, None]) & (batch[0][None, :] > step[0][:, None] - 1.0)
        size = inside @ np.nan_to_num(batch[1]) / np.maximum(inside.sum(axis=1), 1)
        axis.scatter(size, 1000 * step[1], s=8, color=COLOURS[0], alpha=0.7)
        axis.set_title(f"{name}: time between tokens (ms) by batch, means of a minute")
        axis.set_xlabel("requests running")
    return figure


def shares(data: Path | None) -> Figure:
    """Prompts found in the prefix cache; long prompts that are refused."""
    prefix = recorded("f_prefix.metrics.jsonl.gz")
    panels = [
        Panel(
            "prefix-cache hit ratio, two shared beginnings (f_prefix)",
            {"": prefix.series("engine_prefix_cache_hit_ratio")},
            found=prefix.spans("prefix-cache-collapse"),
        )
    ]
    if data is not None:
        burst = of_recording(data / "recordings" / "vllm-0.32.0" / "d_longburst.metrics.jsonl.gz")
        refused, asked = burst.series("svc_refused_total"), burst.series("svc_requests_total")
        panels.append(
            Panel(
                "refused for their length, of all answers (d_longburst)",
                {"all": asked, "refused": refused},
                found=burst.spans("bad-requests"),
            )
        )
    return grid(panels, 2)


def burnrate(_: Path | None) -> Figure:
    """The error budget of an objective on first tokens while the engine is overloaded."""
    bounds = catalog.signal("svc_ttft_seconds").bounds
    within = sum(bound <= 1.0 for bound in bounds)
    buckets = tuple(SignalKey("svc_ttft_seconds", bucket=place) for place in range(len(bounds) + 1))
    slo = Slo("first-token", 0.995, bad=buckets[within:], total=buckets)
    life = of_recording(RECORDED / "c_ramp.metrics.jsonl.gz", compile_slos([slo]))
    times, share = life.series("svc_ttft_seconds:0.5")
    late = life.series("svc_ttft_seconds:0.99")
    return grid(
        [
            Panel(
                "TTFT of the service, median and 99 % (s); the objective is 99.5 % within 1 s (c_ramp)",
                {"median": (times, share), "99 %": late},
                found=life.spans(slo.detector),
                limit=1.0,
                log=True,
            )
        ],
        1,
    )


def seasonal(data: Path | None) -> Figure:
    """A recorded server: a value, its usual level and five scales, by the baseline that the detectors use."""
    if data is None:
        raise SystemExit("seasonal needs --data FOLDER with data/servers")
    one = recordings.servers(data / "data" / "servers", 300.0)[0]
    shown = slice(0, 5 * 288)
    values, times = one.values[shown], one.times[shown]
    column = int(np.argmax(np.nanstd(values, axis=0)))
    base = Baseline(["node_cpu_utilization_ratio"])
    memory = base.empty(1)
    level, scale = np.full(times.size, np.nan), np.full(times.size, np.nan)
    for place, at in enumerate(times):
        usual = base.usual(memory, float(at))
        level[place], scale[place] = float(usual.level[0, 0]), float(usual.scale[0, 0])
        base.learn(memory, values[place : place + 1, column : column + 1], float(at), 300.0)
    days = (times - times[0]) / 86400.0
    figure, axis = plt.subplots(figsize=(9.4, 2.6), layout="constrained")
    axis.fill_between(days, level - 5 * scale, level + 5 * scale, color=TRUE, lw=0, label="usual, five scales")
    axis.plot(days, values[:, column], color=COLOURS[0], lw=0.6, label="value")
    axis.plot(days, level, color="#c2410c", lw=0.8, label="usual at this time of day")
    axis.set_title(f"{one.name}, metric {column}: the band is wide until the time of day was seen twice")
    axis.set_xlabel("days")
    axis.margins(x=0)
    axis.legend(loc="upper right", ncols=3)
    return figure


# --- the simulated fleet ---------------------------------------------------------------------------------


def panel(life: Life, title: str, fault: str, signal: str, *others: str) -> Panel:
    """The signals of whom a fault struck, when it was at work, and when it was named."""
    entity, span = life.truths[fault]
    about = near(life, entity)
    lines = {name.split(":")[0] if others else "": life.series(name, about) for name in (signal, *others)}
    return Panel(title, lines, [span], life.spans(fault))


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
            panel(
                life,
                "uncorrectable errors, new in a scrape",
                "gpu-ecc-uncorrectable",
                "hw_accel_ecc_uncorrectable_total",
            ),
            panel(life, "temperature, held down by heat (C)", "gpu-thermal-throttle", "hw_accel_temperature_celsius"),
            panel(life, "clock, power limit lowered (Hz)", "gpu-power-throttle", "hw_accel_core_clock_hertz"),
            panel(life, "link errors, new in a scrape", "nvlink-degraded", "hw_accel_interconnect_errors_total"),
            panel(life, "a port of a node (1 = up)", "ib-link-down", "hw_link_up"),
            panel(life, "devices that the node's page shows", "exporter-down", "hw_accel_present"),
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
        work.scatter(busy[low], watts[low], s=6, color="#c2410c", lw=0)
    work.set_title("power (W) by utilisation: cards of one class, one of them held down")
    work.set_xlabel("share of the time in which the card had work")
    course.axvspan(begin, end, color=TRUE, lw=0, zorder=0)
    for first, last in life.spans("power-draw", entity=held):
        course.axvspan(first, last, 0.0, 0.12, color=FOUND, lw=0, zorder=0)
    course.plot(*life.series("hw_accel_power_watts", [held]), color=COLOURS[0])
    course.set_title("its power (W); grey: limit lowered, orange: told")
    course.set_xlabel("minutes")
    course.margins(x=0.01)
    return figure


def hosts(_: Path | None) -> Figure:
    """Hosts, containers and pods."""
    plan = [
        Planned("disk-full", 6, 12, "node-0"),
        Planned("noisy-neighbour", 8, 14, "node-1"),
        Planned("clock-skew", 20, 10, "node-2"),
        Planned("cpu-throttled", 12, 10, None),
        Planned("host-memory-leak", 10, 24, None),
        Planned("crash-loop", 22, 12, None),
    ]
    names = ("host-faults", "neighbours", "container-faults", "pod-faults", "startups", "liveness")
    life = of_fleet(plan, 38, names)
    return grid(
        [
            panel(life, "free share of a file system", "disk-full", "node_filesystem_available_ratio"),
            panel(life, "CPU of a host", "noisy-neighbour", "node_cpu_utilization_ratio"),
            panel(life, "clock of a host, off by (s)", "clock-skew", "node_clock_offset_seconds"),
            panel(life, "share of time held at the CPU limit", "cpu-throttled", "container_cpu_throttled_ratio"),
            panel(life, "memory of a container (B)", "host-memory-leak", "container_memory_working_set_bytes"),
            panel(life, "restarts of a pod", "crash-loop", "pod_restarts"),
        ],
        3,
    )


def services(_: Path | None) -> Figure:
    """Traffic, routing, the way in, answers and business, each struck alone in one afternoon of one fleet."""
    plan = [
        Planned("traffic-surge", 12, 8, "code-14b"),
        Planned("garbled-output", 12, 8, None),
        Planned("gateway-fault", 28, 8, "code-14b"),
        Planned("kpi-drop", 28, 8, "chat-70b"),
        Planned("traffic-skew", 44, 8, None),
        Planned("gpu-slow-peer", 60, 10, None),
    ]
    names = ("saturation", "surge", "validity", "entry", "kpi", "skew", "slowness", "outcomes")
    life = of_fleet(plan, 74, names)
    return grid(
        [
            panel(life, "requests of a service, a scrape", "traffic-surge", "svc_requests_total"),
            panel(life, "share of answers that are garbled", "garbled-output", "svc_output_invalid_ratio"),
            panel(life, "probe from outside (1 = success)", "gateway-fault", "probe_success"),
            panel(life, "business figure", "kpi-drop", "svc_kpi_value"),
            panel(life, "requests running at a replica", "traffic-skew", "engine_requests_running"),
            panel(life, "time between tokens of a slow replica (s)", "gpu-slow-peer", "engine_itl_seconds:0.5"),
        ],
        3,
    )


FIGURES: dict[str, Callable[[Path | None], Figure]] = {
    "liveness": liveness,
    "saturation": saturation,
    "slowness": slowness,
    "shares": shares,
    "burnrate": burnrate,
    "seasonal": seasonal,
    "hardware": hardware,
    "power": power,
    "hosts": hosts,
    "services": services,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*FIGURES, []], help=", ".join(FIGURES))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "detection")
    parser.add_argument("--png", type=Path, help="a folder for pictures to look at")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or list(FIGURES):
        with mpl.rc_context(STYLE):
            figure = FIGURES[name](options.data)
            figure.savefig(options.out / f"{name}.svg", metadata={"Date": None})
            if options.png is not None:
                figure.savefig(options.png / f"{name}.png", dpi=110)
            plt.close(figure)
        print(f"{name}.svg", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
