"""Replay of a recording's arrivals through the engine model, with client latencies and page values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.fleet.recorded.reading import GAUGES, Recording
from outrider.model import Floats
from simulator.engine.engine import Conditions, EngineBank
from simulator.spec.parts import EngineModel

LONGEST_DRAIN_SECONDS = 3600.0
LEAST_GAPS = 20
PACES = 0.5, 4.0


@dataclass(frozen=True, slots=True)
class Replay:
    """TTFT and E2E latency in seconds, shape (models, requests); inf for requests without a response.

    ``series``: gauges and counters of the page at the times of the scrapes, shape (scrapes, models).
    """

    ttft: Floats
    e2e: Floats
    series: dict[str, Floats]
    preemptions: Floats


def replay(recording: Recording, models: Sequence[EngineModel], paces: Floats | None = None) -> Replay:
    """Replays all requests of a recording through each of ``models``, scrape by scrape.

    ``paces`` stretch the steps between one scrape and the next, shape (scrapes,); None: no change.
    """
    bank = EngineBank(list(models), 0, patience_seconds=np.inf)
    count, requests = len(models), recording.at.size
    first, end = np.full((2, requests, count), np.inf)

    def note(order: np.ndarray, replica: np.ndarray, at: Floats, done: Floats) -> None:
        first[order // count, replica], end[order // count, replica] = at, done

    bank.answered = note
    start = min(float(recording.scraped_at[0]), float(recording.at[0])) - 1.0
    series: dict[str, list[Floats]] = {name: [] for name in (*GAUGES, "itl_sum", "itl_count")}
    for number, now in enumerate(recording.scraped_at):
        _accept(bank, recording, start, float(now))
        slow = np.ones(1) if paces is None else paces[number : number + 1]
        bank.step(start, float(now) - start, Conditions(slow=slow))
        for name, values in _page(bank).items():
            series[name].append(values.copy())
        start = float(now)
    _accept(bank, recording, start, np.inf)
    bank.step(start, LONGEST_DRAIN_SECONDS, Conditions())
    return Replay(
        ttft=(first - recording.at[:, None]).T,
        e2e=(end - recording.at[:, None]).T,
        series={name: np.stack(values) for name, values in series.items()},
        preemptions=bank.counters.plain["preemptions"],
    )


def pace(recording: Recording, model: EngineModel, rounds: int = 3) -> Floats:
    """Returns the ratio of real to modeled step times between one scrape and the next, shape (scrapes,).

    The speed of a shared host varies. The ITL of the page over three scrapes is compared with that of a replay, which
    is then repeated at that pace.
    """
    result = np.ones(recording.scraped_at.size)
    recorded, recorded_gaps = _mean_gaps(recording.series["itl_sum"], recording.series["itl_count"])
    for _ in range(rounds):
        series = replay(recording, [model], result).series
        replayed, replayed_gaps = _mean_gaps(series["itl_sum"][:, 0], series["itl_count"][:, 0])
        measured = (recorded_gaps >= LEAST_GAPS) & (replayed_gaps >= LEAST_GAPS)
        result = np.clip(np.where(measured, result * recorded / np.maximum(replayed, 1e-9), 1.0), *PACES)
    return result


def _mean_gaps(total: Floats, count: Floats) -> tuple[Floats, Floats]:
    """Returns the mean seconds between tokens around each scrape, and the number of gaps."""
    seconds, gaps = (np.convolve(np.diff(values, prepend=values[0]), np.ones(3), "same") for values in (total, count))
    return seconds / np.maximum(gaps, 1e-9), gaps


def _page(bank: EngineBank) -> dict[str, Floats]:
    counters = bank.counters
    return {
        "running": bank.running,
        "waiting": bank.waiting,
        "kv": bank.kv_used_ratio,
        "itl_sum": counters.sums["itl"],
        "itl_count": counters.buckets["itl"].sum(axis=1),
    }


def _accept(bank: EngineBank, recording: Recording, start: float, end: float) -> None:
    """Enqueues the requests between two times, once for every replica."""
    low, high = np.searchsorted(recording.at, (start, end))
    replica = np.tile(np.arange(bank.size), high - low)

    def each(values: np.ndarray) -> np.ndarray:
        return np.repeat(values[low:high], bank.size)

    bank.accept(
        replica,
        each(recording.at),
        each(recording.prompt),
        each(recording.prompt - recording.cached),
        each(recording.output),
        prefix=each(recording.prefix),
        common=each(recording.common),
    )
