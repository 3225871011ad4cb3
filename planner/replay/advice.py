"""Which way of scaling fits a service: the class of its traffic, what each strategy costs there, and one advice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

import numpy as np

from outrider.text.i18n import Language, translate
from planner.replay.backtest import Trace
from planner.replay.score import WAITING_GOAL, Kept, known_of, replay_one
from planner.replay.workload import World, world

SIMPLEST_FIRST = ("static", "cron", "hpa", "keda", "knative", "outrider")
WORTH_SIMPLER = 0.05
"""A simpler strategy is advised when it costs at most so much more than the cheapest one."""
_QUIET_SHARE, _QUIET_SLOTS = 0.01, 0.3
_CONSTANT_SPREAD = 1.25
_BURST = 0.35
_BURST_SLOTS = 0.004
_DAILY = 0.5  # public traces have .62 to .98; of 200 random ones of seven days 99 in a hundred stay below .49


class TrafficClass(StrEnum):
    """How traffic comes."""

    INTERMITTENT = "intermittent"
    CONSTANT = "constant"
    BURSTY = "bursty"
    DIURNAL = "diurnal"
    IRREGULAR = "irregular"


@dataclass(frozen=True, slots=True)
class Advice:
    """One trace. ``rows`` has each strategy at the setting that was cheapest for this trace and kept the goal.

    A strategy of which no setting kept it stands there with the setting that waited least. ``recommended``
    is None where nothing kept the goal.
    """

    name: str
    traffic: TrafficClass
    recommended: str | None
    reason: str
    rows: tuple[Kept, ...]

    def as_dict(self, language: Language = "en") -> dict[str, Any]:
        """As JSON; the reason as a word and as a sentence."""
        chosen = next((row for row in self.rows if row.name == self.recommended), None)
        return {
            "name": self.name,
            "traffic_class": self.traffic.value,
            "recommended": self.recommended,
            "setting": chosen.setting if chosen else None,
            "reason": self.reason,
            "why": translate(f"plan.strategy_{self.reason}", language),
            "strategies": [
                {**asdict(row), "keeps_goal": row.requests_waiting_over_2s_ratio <= WAITING_GOAL} for row in self.rows
            ],
        }


def advise(
    traces: Sequence[Trace],
    *,
    startup: timedelta,
    cold_start_limit: timedelta = timedelta(0),
    progress: Callable[[str, float], None] = lambda _stage, _share: None,
) -> tuple[Advice, ...]:
    """Advice for each trace. ``cold_start_limit``: how long the first request after a silence may wait."""
    found = []
    for place, trace in enumerate(traces):
        traffic = world(trace)
        found.append(_advise(traffic, replay_one(known_of(traffic, startup), startup).strategies, cold_start_limit))
        progress("replay", (place + 1) / len(traces))
    return tuple(found)


def traffic_class(traffic: World) -> TrafficClass:
    """By the slots that are known.

    Intermittent: nearly nothing (1 % of the p99) in three slots of ten. Constant: p95 within a quarter of
    p5. Bursty: the load jumps by more than 35 % of its median within one slot, in four slots of a
    thousand. Diurnal: what slots differ from the mean of their day goes with the day before, by a
    correlation of a half or more. Days of another level, as weekends are, keep the shape of a day.
    """
    known = traffic.slots[np.isfinite(traffic.slots)]
    high = float(np.percentile(known, 99))
    if high <= 0 or (known <= _QUIET_SHARE * high).mean() >= _QUIET_SLOTS:
        return TrafficClass.INTERMITTENT
    low, top = float(np.percentile(known, 5)), float(np.percentile(known, 95))
    jumps = np.diff(traffic.slots)
    jumps = jumps[np.isfinite(jumps)] / max(float(np.median(known)), 1e-12)
    if (jumps > _BURST).mean() >= _BURST_SLOTS:
        return TrafficClass.BURSTY
    if top <= low * _CONSTANT_SPREAD:
        return TrafficClass.CONSTANT
    return TrafficClass.DIURNAL if _daily(traffic) >= _DAILY else TrafficClass.IRREGULAR


def _daily(traffic: World) -> float:
    """The correlation of slots with those a day before, each relative to the mean of its own day; 0 without any.

    Days of which less than half is known, or that have no load, count for nothing.
    """
    days = -(-traffic.slots.size // traffic.season)
    slots = np.full(days * traffic.season, np.nan)
    slots[: traffic.slots.size] = traffic.slots
    by_day = slots.reshape(days, traffic.season)
    known = np.isfinite(by_day)
    count = known.sum(axis=1, keepdims=True)
    level = np.where(known, by_day, 0.0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
    usable = (count >= traffic.season / 2) & (level > 0)
    shape = np.where(usable, by_day, np.nan) / np.where(usable, level, 1.0)
    pairs = np.stack([shape[:-1].ravel(), shape[1:].ravel()])
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    if pairs.shape[1] <= 2 or pairs.std(axis=1).min() <= 0:
        return 0.0
    return float(np.asarray(np.corrcoef(pairs))[0, 1])


def _advise(traffic: World, strategies: Sequence[Kept], cold_start_limit: timedelta) -> Advice:
    rows = tuple(_best([row for row in strategies if row.name == name]) for name in SIMPLEST_FIRST)
    kind = traffic_class(traffic)
    cold = [
        row
        for row in strategies
        if row.name == "knative" and 0 < row.first_request_delay_seconds <= cold_start_limit.total_seconds()
    ]
    if cold:
        cheapest = min(cold, key=lambda row: row.gpu_hours_ratio)
        rows = tuple(cheapest if row.name == "knative" else row for row in rows)
        return Advice(traffic.name, kind, "knative", "scale_to_zero", rows)
    keeping = [row for row in rows if row.requests_waiting_over_2s_ratio <= WAITING_GOAL]
    if not keeping:
        return Advice(traffic.name, kind, None, "none_keeps", rows)
    least = min(row.gpu_hours_ratio for row in keeping)
    chosen = next(row for row in keeping if row.gpu_hours_ratio <= least * (1.0 + WORTH_SIMPLER))
    if chosen.gpu_hours_ratio > least:
        return Advice(traffic.name, kind, chosen.name, "simpler", rows)
    return Advice(traffic.name, kind, chosen.name, f"cheapest_{kind.value}", rows)


def _best(rows: Sequence[Kept]) -> Kept:
    """The cheapest setting that kept the goal, else the one that waited least."""
    keeping = [row for row in rows if row.requests_waiting_over_2s_ratio <= WAITING_GOAL]
    if keeping:
        return min(keeping, key=lambda row: row.gpu_hours_ratio)
    return min(rows, key=lambda row: (row.requests_waiting_over_2s_ratio, row.gpu_hours_ratio))
