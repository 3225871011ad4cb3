"""Pictures of docs/explanation/detection/engines.md: recordings of a real engine, and a simulated fleet beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from detection_lives import Life, Planned, Series, of_fleet, of_recording, recorded
from detection_panels import COLOURS, FOUND, TRUE, Panel, bands, grid, key, struck
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from detectors.engine.missing_metrics import WATCHED
from detectors.engine.slow_startup import PENDING_SECONDS
from outrider.model import EntityKind, EventKind
from service.evaluation import events


def liveness(_: Path | None) -> Figure:
    """A hang under load, a hang at an idle instant, a kill, an engine put to sleep."""
    hang, idle = recorded("i_hang.metrics.jsonl.gz"), recorded("n_fleet_hang")
    kill, sleep = recorded("g_sigkill.metrics.jsonl.gz"), recorded("l_sleep.metrics.jsonl.gz")
    still, still_idle = [(65 / 60, 140 / 60)], [(65 / 60, 145 / 60)]
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
                still_idle,
                idle.spans("engine-hung"),
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


def startups(_: Path | None) -> Figure:
    """Four ways of a start that lasts: the load of one, the image of one, the storage of many, and no place at all."""
    plan = [
        Planned("slow-start", 4, 14, "chat-70b-7"),
        Planned("image-pull-slow", 4, 15, "node-1"),
        Planned("storage-slow", 26, 18, None),
        Planned("pods-pending", 50, 10, None),
    ]
    life = of_fleet(plan, 64, ("startups",))
    pods = {one.name: one for one in life.topology.of_kind(EntityKind.POD)}

    def of(fault: str, title: str, lines: Mapping[str, Series], limit: float | Series) -> Panel:
        begin, end = life.truths[fault][1]
        return Panel(title, lines, [(begin, end)], life.spans(fault), limit, shown=(begin - 2, end + 4), from_zero=True)

    slow, pull = (life.edge(fault, entity=life.truths[fault][0]) for fault in ("slow-start", "image-pull-slow"))
    least = float(np.nanmin(life.edge("slow-start")[1])) / 60.0
    pulled = next(one.evidence[0].arguments["pod"] for _, one in life.found if one.fault == "image-pull-slow")
    begin, end = life.truths["storage-slow"][1]
    begun = sorted((at, event.entity.name) for at, event in life.events if event.code == "Started" and begin < at < end)
    late = [name for _, name in begun][: len(COLOURS)]
    held = next(
        pod
        for (pod, signal), told in life.values.items()
        if signal == "pod_unschedulable" and (1.0 in dict(told).values())
    )
    return grid(
        [
            of("slow-start", "minutes since the process of chat-70b-7 began, until ready",
               {"": life.since(pods["chat-70b-7"], "Started")}, (slow[0], slow[1] / 60.0)),
            of("image-pull-slow", f"minutes since {pulled} was placed, until its process begins",
               {"": life.since(pods[pulled], "Scheduled", "Started")}, (pull[0], pull[1] / 60.0)),
            of("storage-slow", "minutes since the processes of four pods began, until ready",
               {name: life.since(pods[name], "Started") for name in late}, least),
            of("pods-pending", f"minutes that {held.name} has waited for a place",
               {"": life.since(held, "FailedScheduling", "Scheduled")}, PENDING_SECONDS / 60.0),
        ],
        2,
    )  # fmt: skip


def batch_limit(_: Path | None) -> Figure:
    """The most sequences at once are lowered below what replicas have run."""
    life = of_fleet([Planned("batch-misconfigured", 12, 12, "chat-70b")], 30, ("batch-limit", "saturation", "surge"))
    service, span = life.truths["batch-misconfigured"]
    replicas = life.topology.below(service, EntityKind.REPLICA)
    panels = []
    for signal, text in (
        ("engine_requests_running", "requests running"),
        ("engine_requests_waiting", "requests waiting"),
    ):
        rows = [life.series(signal, [one]) for one in replicas]
        held = np.stack([values for _, values in rows])
        panels.append(
            Panel(
                f"{text} at the replicas of {service.name}",
                {"busiest": (rows[0][0], np.nanmax(held, axis=0)), "middle": (rows[0][0], np.nanmedian(held, axis=0))},
                [span],
                life.spans("batch-misconfigured"),
                usual=(rows[0][0], np.nanmedian(np.fmax.accumulate(held, axis=1), axis=0)),
                from_zero=True,
            )
        )
    return grid([replace(panels[0], limit=life.edge("batch-limit")), replace(panels[1], usual=None)], 2)


@cache
def _told_by_engines() -> Life:
    plan = [
        Planned("gpu-oom", 5, 12, "chat-70b-1"),
        Planned("gpu-memory-fragmentation", 5, 12, "chat-70b-2"),
        Planned("nccl-timeout", 5, 12, "chat-70b-3"),
        Planned("model-load-failed", 5, 12, "chat-70b-4"),
        Planned("metric-renamed", 24, 14, "code-14b"),
    ]
    return of_fleet(plan, 42, ("engine-logs", "vanished-metrics"))


def errors(_: Path | None) -> Figure:
    """Requests that engines fail: since a new revision, in transfers of KV blocks, and for memory in pieces."""
    plan = [
        Planned("bad-rollout", 8, 12, "code-14b"),
        Planned("kv-transfer-fail", 8, 10, None),
        Planned("gpu-memory-fragmentation", 8, 10, "chat-70b-2"),
    ]
    life = of_fleet(plan, 28, ("engine-errors",))
    panels = [
        struck(life, "failed, a scrape: a new revision", "bad-rollout", "engine_requests_failed_total"),
        struck(life, "transfers that fail (1/s)", "kv-transfer-fail", "engine_kv_transfer_failures_per_second"),
        struck(life, "failed, a scrape: memory in pieces", "gpu-memory-fragmentation", "engine_requests_failed_total"),
    ]
    return grid([replace(panel, shown=(4, 28), from_zero=True) for panel in panels], 3)


def logs(_: Path | None) -> Figure:
    """Lines of engines' logs, one row a replica: each line is a stroke."""
    life = _told_by_engines()
    faults = [fault for fault in life.truths if fault != "metric-renamed"]
    figure, axis = plt.subplots(figsize=(9.4, 2.6), layout="constrained")
    for row, fault in enumerate(faults):
        replica, (begin, end) = life.truths[fault]
        axis.broken_barh([(begin, end - begin)], (row - 0.42, 0.84), color=TRUE, lw=0)
        said = life.spans(fault, entity=replica)
        axis.broken_barh([(first, last - first) for first, last in said], (row + 0.2, 0.22), color=FOUND, lw=0)
        lines = [
            (at, event.code) for at, event in life.events if event.entity == replica and event.kind is EventKind.LOG
        ]
        codes = dict.fromkeys(code for _, code in lines)
        for place, (colour, code) in enumerate(zip(COLOURS, codes, strict=False)):
            at = [minute for minute, one in lines if one == code]
            axis.vlines(at, row - 0.36, row + 0.12, color=colour, lw=1.6)
            axis.text(26.5, row - 0.27 + 0.27 * place, f"{code} x {len(at)}", color=colour, fontsize=7, va="center")
    axis.set_yticks(range(len(faults)), [f"{fault}\n{life.truths[fault][0].name}" for fault in faults])
    axis.invert_yaxis()
    axis.set_xlim(3, 31)
    axis.set_xlabel("minutes")
    axis.set_title("lines of the log that mean something (strokes), by replica; what they are is at the right")
    key(figure, [Panel("", {}, [(0, 1)], [(0, 1)])])
    return figure


def vanished(_: Path | None) -> Figure:
    """What stands on the pages of an engine before and after a new process: a recording, and a simulated release."""
    life, real = _told_by_engines(), recorded("g_sigkill.metrics.jsonl.gz")
    service, span = life.truths["metric-renamed"]
    first = min(life.topology.below(service, EntityKind.REPLICA), key=lambda one: one.name)
    (recorded_one,) = {entity for entity, signal in real.values if signal == "engine_requests_running"}
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 2.9), layout="constrained", sharey=True)
    for axis, one, entity, true, title in (
        (axes[0], real, recorded_one, [], "killed and started again (g_sigkill): all is there again"),
        (axes[1], life, first, [span], f"{first.name}: a release that spells metrics in another way"),
    ):
        bands(axis, true, one.spans("vanished-metrics"))
        for row, signal in enumerate(reversed(WATCHED)):
            held = one.values.get((entity, signal), [])
            there = np.array([np.isfinite(value) for _, value in held], dtype=np.bool_)
            at = np.array([minute for minute, _ in held])
            begun = [
                (at[low] - one.step_minutes, at[high] - at[low] + one.step_minutes) for low, high in events.spans(there)
            ]
            axis.broken_barh(begun, (row - 0.22, 0.44), color=COLOURS[0], lw=0)
        axis.set_title(title)
        axis.set_xlabel("minutes")
        axis.set_ylim(-1.8, len(WATCHED) - 0.4)
    axes[0].set_xlim(left=0)
    axes[1].set_xlim(span[0] - 6, span[1] + 4)
    axes[0].set_yticks(range(len(WATCHED)), [signal.removeprefix("engine_") for signal in reversed(WATCHED)])
    key(figure, [Panel("", {}, [(0, 1)], [(0, 1)])])
    return figure


FIGURES = {
    "liveness": liveness,
    "slowness": slowness,
    "shares": shares,
    "batchlimit": batch_limit,
    "errors": errors,
    "logs": logs,
    "startups": startups,
    "vanished": vanished,
}
