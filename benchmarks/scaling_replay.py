"""Cost of the scaling loop and share of waiting requests: public traffic traces, 5, 10 and 15 minutes of start-up.

GPU-hours are relative to the peak of the trace held all the time, as a mean over the traces. Waiting is the share of
requests over two seconds on the worst trace. The peers run on the same arrivals. Each uses its cheapest setting per
trace, in hindsight, that keeps 99.5 % of the requests under two seconds. The loop has one setting and learns from
history alone. The constants of its choice were fitted on two of the traces and on synthetic ones (``TUNED_ON``); the
note has the role of each trace. One peer is the capacity formula on a default Prophet forecast, refitted every two
hours; its result at the usual buffer of 0.25 is in the note. The oracle knows all traffic in advance.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, data_folder, main, print_progress, quick, result
from planner.replay import score
from planner.replay.backtest import parse_trace
from planner.replay.prophet_policy import BUFFERS
from planner.replay.score import ScalingReplay, TraceReplay
from service.planning.fanout import fan_out, usual_workers

STARTUPS = (5, 10, 15)
TIMES_KEDA = 0.95
TIMES_ORACLE = 1.25
USUAL_BUFFER = BUFFERS[0]
TUNED_ON = ("azure2024_conversation", "servegen_small_total")
NAMES = ("scaling_replay", "scaling_replay_keda", "scaling_replay_waiting", "scaling_replay_oracle")


def run() -> list[Result]:
    """Returns cost and waiting at each start-up time; at the shortest also the oracle and reversals.

    A quick run has the shortest trace alone, without Prophet.
    """
    folder = data_folder()
    paths = sorted((folder / "traffic").glob("*.csv")) if folder else []
    if not paths:
        reason = "no traffic/*.csv in the data folder" if folder else "set --data DIR or $OUTRIDER_DATA"
        return [result(name, None, "ratio", None, None, note=f"not measured: {reason}") for name in NAMES]
    traces = [parse_trace(path.read_text(encoding="utf-8"), path.stem) for path in paths]
    if quick():
        traces = [min(traces, key=lambda trace: trace.values.size)]
    startups = tuple(timedelta(minutes=minutes) for minutes in STARTUPS)
    print_progress(f"{len(traces)} traces at {', '.join(map(str, STARTUPS))} min of start-up")
    replayed = fan_out(
        partial(score.replay_one, startups=startups, prophet=not quick()),
        traces,
        workers=usual_workers(),
        progress=lambda done, count: print_progress(f"{done} of {count} traces"),
    )
    results: list[Result] = []
    for minutes, replay in zip(STARTUPS, score.join(replayed, startups), strict=True):
        results += _lines(minutes, replay)
    return results


def _lines(minutes: int, replayed: ScalingReplay) -> list[Result]:
    shown, traces = replayed.as_dict(), replayed.traces
    cost, worst = shown["mean_gpu_hours_ratio"], shown["worst_requests_waiting_over_2s_ratio"]
    peers = {name: _mean(traces, name) for name in traces[0].rivals()}
    keeps, suffix = worst <= score.WAITING_GOAL, f"_{minutes}min"
    # without a setting of KEDA that keeps the limit there is nothing to compare with
    ratios = [trace.ours.gpu_hours_ratio / best.gpu_hours_ratio for trace in traces if (best := trace.best("keda"))]
    highest, keda = max(ratios, default=None), peers["keda"]
    cheap = highest is None or highest <= TIMES_KEDA
    target = None if keda is None else TIMES_KEDA * keda
    lines = [
        result(f"scaling_replay{suffix}", cost, "of static peak", target, keeps and cheap,
               "KEDA, best per trace in hindsight", keda, keda / cost if keda else None,
               traces=len(traces), peers=peers, note=_note(traces)),
        result(f"scaling_replay_keda{suffix}", highest, "x best KEDA, worst trace", TIMES_KEDA, cheap),
        result(f"scaling_replay_waiting{suffix}", worst, "of requests", score.WAITING_GOAL, keeps),
    ]  # fmt: skip
    if minutes == min(STARTUPS):
        times = shown["mean_times_oracle"]
        turns = sum(trace.ours.reversals_within_30min for trace in traces)
        lines.append(result("scaling_replay_oracle", times, "x oracle", TIMES_ORACLE, times <= TIMES_ORACLE))
        lines.append(result("scaling_replay_reversals", turns, "at constant load", 0, turns == 0))
    return lines


def _note(traces: tuple[TraceReplay, ...]) -> str:
    parts = []
    for trace in traces:
        best = trace.best("keda")
        keda = "no KEDA keeps the limit" if best is None else f"KEDA {best.gpu_hours_ratio:.3f} at {best.setting:g}"
        role = "tuned on" if trace.name in TUNED_ON else "never tuned on"
        ours = trace.ours
        parts.append(
            f"{trace.name} ({role}) {ours.gpu_hours_ratio:.3f}, {ours.requests_waiting_over_2s_ratio:.2%} wait, "
            f"{keda}, oracle {trace.oracle_ratio:.3f}"
        )
    rows = [row for trace in traces if (row := trace.rival("prophet", USUAL_BUFFER)) is not None]
    if rows:
        waits = sorted(row.requests_waiting_over_2s_ratio for row in rows)
        cost = sum(row.gpu_hours_ratio for row in rows) / len(rows)
        parts.append(
            f"formula x Prophet at a buffer of {USUAL_BUFFER}: {cost:.3f}, {waits[0]:.1%} to {waits[-1]:.1%} wait"
        )
    return "; ".join(parts)


def _mean(traces: tuple[TraceReplay, ...], name: str) -> float | None:
    """Mean of the best settings of a peer; None if it has none on a trace."""
    rows = [trace.best(name) for trace in traces]
    costs = [row.gpu_hours_ratio for row in rows if row is not None]
    return sum(costs) / len(costs) if len(costs) == len(rows) else None


if __name__ == "__main__":
    main(run)
