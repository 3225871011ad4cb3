"""prefix-cache-collapse: prompts no longer share prefixes, on every replica of a service.

Judged by the prompt tokens per request found in the cache (hit ratio x prompt length). Longer prompts with the same
shared prefix lower the ratio but not those tokens. Another request mix therefore does not count. A young process has a
cold cache and is skipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

import numpy as np

from detectors.base import sampling
from detectors.base.condition_durations import measure_run, newest
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from outrider import windows
from outrider.model import (
    SUM_BUCKET,
    EntityKind,
    EntityRef,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    SignalKey,
    Window,
)
from outrider.topology import Topology

HITS = "engine_prefix_cache_hit_ratio"
PROMPTS, FIRSTS = "engine_prompt_tokens_total", "engine_ttft_seconds"
FALLEN = 0.5  # of the usual ratio and of the usual tokens per request
LEAST_RATIO = 0.1  # below this, the cache had nothing to lose
LASTING = timedelta(seconds=45)
LASTING_SCRAPES = 3
COLD = timedelta(minutes=5)  # until a cold cache holds the shared prefixes
LAG = timedelta(minutes=3)  # newer values are not learned
MINUTE = 60.0
KNOWN_SECONDS = 45.0
LEVEL_SECONDS = 3600.0
GROUP_SHARE = 0.7  # a single replica lost its clients; the service still shares prefixes
FROZEN_AT_MOST = 86400.0  # after this, the low ratio is the new normal
_DEFAULTS: dict[str, float] = {
    "level": np.nan,
    "tokens": np.nan,
    "weight_seconds": 0.0,
    "learnt_until": -np.inf,
    "low_since": np.nan,
}


class PrefixCacheDetector(StatefulDetector):
    """One verdict per service whose prefix caches stopped hitting."""

    name = "prefix-cache"
    kind = EntityKind.REPLICA
    keys: tuple[SignalKey, ...] = (
        SignalKey(HITS),
        SignalKey("engine_start_time_seconds"),
        SignalKey(PROMPTS),
        *sampling.keys_of(("engine_prompt_length_tokens", FIRSTS)),
    )
    window = timedelta(minutes=10)
    state_version = 1
    defaults = _DEFAULTS

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Compares the newest minute of every replica with its usual level; names services."""
        ratio = windows.believed(window, HITS)
        length = _length(window)
        tokens = ratio * length
        known = (memory["weight_seconds"] >= KNOWN_SECONDS) & (memory["level"] >= LEAST_RATIO)
        age = window.times[-1] - newest(window, window.column("engine_start_time_seconds"))
        known &= ~(age < COLD.total_seconds())
        with np.errstate(invalid="ignore"):
            low = (ratio < FALLEN * memory["level"][:, None]) & ~(tokens >= FALLEN * memory["tokens"][:, None])
        run = measure_run(~np.isnan(ratio), low, window.times)
        judged = known & ~np.isnan(newest(window, ratio))
        lasting = judged & run.lasts(LASTING.total_seconds(), LASTING_SCRAPES)
        members: dict[EntityRef, list[int]] = defaultdict(list)
        for row in np.flatnonzero(judged) if lasting.any() else ():
            for service in topology.above(window.entities[row], EntityKind.SERVICE):
                members[service].append(int(row))
        verdicts: list[Finding | NoVerdict] = []
        for service, rows in members.items():
            fallen = [row for row in rows if lasting[row]]
            if not fallen or len(fallen) < GROUP_SHARE * len(rows):
                continue
            value, usual = (float(np.median(part[fallen])) for part in (newest(window, ratio), memory["level"]))
            limit = Interval(FALLEN * usual, None)
            arguments = {"ratio": value, "usual": usual, "fallen": len(fallen), "judged": len(rows)}
            item = evidence(HITS, value, "cache_finds_little", limit, **arguments)
            since = float(window.times[run.start[fallen]].min())
            fault = "prefix-cache-collapse"
            verdicts.append(
                finding(self.name, service, fault, score=0.85, since=since, now=now, evidence_items=(item,))
            )
        _learn(window, memory, ratio, tokens, low)
        if not judged.any():
            verdicts.append(NoVerdict(self.name, None, NoVerdictReason.WARMING_UP))
        return verdicts


def _length(window: Window) -> Floats:
    """Mean prompt length at each time, (entities, times); NaN if the engine lacks it, then the ratio decides.

    It is that of the prompts computed in the trailing minute, as the ratio is. Requests that ended, or those of the
    last five minutes, would be too short for a ratio that has just fallen because of longer prompts.
    """
    last = slice(window.times.size - 1, None)
    ended: Floats = sampling.read(window, ("engine_prompt_length_tokens",), last)[:, -1:, 0]
    tokens, firsts = (_of_last_minute(window, keys) for keys in ((SignalKey(PROMPTS),), _counts(FIRSTS)))
    computed = np.divide(tokens, firsts, out=np.full_like(tokens, np.nan), where=firsts >= sampling.MIN_EVENTS)
    return np.where(computed > 0, computed, ended)


def _counts(histogram: str) -> tuple[SignalKey, ...]:
    return tuple(key for key in sampling.keys_of((histogram,)) if key.bucket != SUM_BUCKET)


def _of_last_minute(window: Window, keys: Iterable[SignalKey]) -> Floats:
    """Sums of increases over the minute before each time, (entities, times)."""
    values = np.sum([np.nan_to_num(windows.believed(window, key)) for key in keys], axis=0)
    cumulated = np.concatenate((np.zeros((values.shape[0], 1)), np.cumsum(values, axis=1)), axis=1)
    begins = np.searchsorted(window.times, window.times - MINUTE, side="right")
    return np.asarray(cumulated[:, 1:] - cumulated[:, begins], dtype=np.float64)


def _learn(window: Window, memory: dict[str, Floats], ratio: Floats, tokens: Floats, low: np.ndarray) -> None:
    """Moves the levels towards values older than the lag that were not low, or were low for a day."""
    is_low = newest(window, np.where(np.isnan(ratio), np.nan, low)) > 0
    memory["low_since"] = np.where(is_low, np.fmin(memory["low_since"], window.times[-1]), np.nan)
    usual = ~low | (window.times[-1] - memory["low_since"] > FROZEN_AT_MOST)[:, None]
    old = np.zeros(window.times.size, dtype=np.bool_)
    old[: windows.recent(window, LAG).start] = True
    where = old[None, :] & (window.times[None, :] > memory["learnt_until"][:, None]) & ~np.isnan(ratio) & usual
    count = where.sum(axis=1)
    seconds = count * window.step.total_seconds()
    for name, values in (("level", ratio), ("tokens", tokens)):
        mean = np.where(where, np.nan_to_num(values), 0.0).sum(axis=1) / np.maximum(count, 1)
        arguments = (count > 0) & ~np.isnan(np.where(where, values, 0.0)).any(axis=1)
        held = np.where(np.isnan(memory[name]), mean, memory[name])
        share = seconds / np.maximum(np.minimum(memory["weight_seconds"] + seconds, LEVEL_SECONDS), 1e-9)
        memory[name] = np.where(arguments, held + np.minimum(share, 1.0) * (mean - held), memory[name])
    memory["weight_seconds"] = memory["weight_seconds"] + seconds
    if old.any():
        memory["learnt_until"] = np.maximum(memory["learnt_until"], window.times[old][-1])
