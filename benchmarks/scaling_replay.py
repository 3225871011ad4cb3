"""Cost of the scaling loop and share of waiting requests: public traffic traces, 5, 10 and 15 minutes of start-up.

GPU-hours are relative to the peak of the trace held all the time, as a mean over the traces. Waiting is the share of
requests over two seconds on the worst trace. The peers run on the same traces. Each uses its cheapest setting in
hindsight that keeps 99.5 % of requests under two seconds on every trace. One peer is the capacity formula on a default
Prophet forecast, refitted every two hours; its result at the usual buffer of 0.25 is in the note. The oracle knows all
traffic in advance.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, data_folder, main, print_progress, quick, result
from planner.replay import score
from planner.replay.backtest import Trace, parse_trace
from planner.replay.prophet_policy import BUFFERS
from planner.replay.score import ScalingReplay

TARGETS = {5: 0.58, 10: 0.68, 15: 0.75}
TIMES_ORACLE = 1.28
USUAL_BUFFER = BUFFERS[0]
NAMES = ("scaling_replay", "scaling_replay_waiting", "scaling_replay_oracle", "scaling_replay_reversals")


def run() -> list[Result]:
    """Returns cost and waiting at each start-up time; at five minutes also the oracle and reversals."""
    folder = data_folder()
    paths = sorted((folder / "traffic").glob("*.csv")) if folder else []
    if not paths:
        reason = "no traffic/*.csv in the data folder" if folder else "set --data DIR or $OUTRIDER_DATA"
        return [result(name, None, "ratio", None, None, note=f"not measured: {reason}") for name in NAMES]
    traces = [parse_trace(path.read_text(encoding="utf-8"), path.stem) for path in paths]
    if quick():
        traces = [min(traces, key=lambda trace: trace.values.size)]
    results: list[Result] = []
    reported: set[int] = set()

    def progress(stage: str, share: float) -> None:
        tenth = int(share * 10)
        if stage == "prophet" and tenth not in reported:
            reported.add(tenth)
            print_progress(f"fitting the rival's Prophets: {share:.0%}")

    print_progress(f"{len(traces)} traces at {', '.join(map(str, TARGETS))} min of start-up")
    replayed = score.replays(traces, [timedelta(minutes=minutes) for minutes in TARGETS], progress=progress)
    for minutes, replay in zip(TARGETS, replayed, strict=True):
        results += _lines(minutes, replay, traces)
    return results


def _lines(minutes: int, replayed: ScalingReplay, traces: list[Trace]) -> list[Result]:
    shown = replayed.as_dict()
    cost, worst = shown["mean_gpu_hours_ratio"], shown["worst_requests_waiting_over_2s_ratio"]
    rivals = {name: _mean(shown, f"{name}_ratio") for name in replayed.settings}
    measured = {name: value for name, value in rivals.items() if value is not None}
    best = min(measured, key=lambda name: measured[name]) if measured else None
    peer = measured[best] if best else None
    suffix = f"_{minutes}min"
    details = ", ".join(
        f"{row['name']} {row['gpu_hours_ratio']:.3f} (oracle {row['oracle_ratio']:.3f}, "
        f"{row['requests_waiting_over_2s_ratio']:.2%} wait)"
        for row in shown["traces"]
    )
    never = [name for name, value in rivals.items() if value is None]
    note = details + (f"; no setting of {', '.join(never)} keeps 99.5 % on every trace" if never else "")
    note += _by_rote(replayed)
    label = f"{best} at {replayed.settings[best]:g}, best in hindsight" if best else None
    target, keeps = TARGETS[minutes], worst <= score.WAITING_GOAL
    lines = [
        result(f"scaling_replay{suffix}", cost, "of static peak", target, cost <= target and keeps,
               label, peer, peer / cost if peer else None, traces=len(traces), peers=rivals, note=note),
        result(f"scaling_replay_waiting{suffix}", worst, "of requests", score.WAITING_GOAL, keeps),
    ]  # fmt: skip
    if minutes == min(TARGETS):
        times = shown["mean_times_oracle"]
        turns = sum(row["reversals_within_30min"] for row in shown["traces"])
        lines.append(result("scaling_replay_oracle", times, "x oracle", TIMES_ORACLE, times <= TIMES_ORACLE))
        lines.append(result("scaling_replay_reversals", turns, "at constant load", 0, turns == 0))
    return lines


def _by_rote(replayed: ScalingReplay) -> str:
    """Returns cost and waiting of formula x Prophet at the usual buffer."""
    rows = [row for trace in replayed.traces if (row := trace.rival("prophet", USUAL_BUFFER)) is not None]
    cost = sum(row.gpu_hours_ratio for row in rows) / len(rows)
    waits = sorted(row.requests_waiting_over_2s_ratio for row in rows)
    return f"; formula x Prophet at a buffer of {USUAL_BUFFER}: {cost:.3f}, {waits[0]:.1%} to {waits[-1]:.1%} wait"


def _mean(shown: dict[str, object], key: str) -> float | None:
    rows = shown["traces"]
    assert isinstance(rows, list)
    values = [row[key] for row in rows]
    return sum(values) / len(values) if values and None not in values else None


if __name__ == "__main__":
    main(run)
