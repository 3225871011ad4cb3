"""Load shapes: seeded, pure functions of time, without state.

A shape gives the request rate relative to the service's daily peak, and the differences from default requests.
Constants were measured on two public sets of real LLM traffic: the Azure LLM inference trace of May 2024
(conversation, 7 days) and the Alibaba ServeGen traces (14 days), both at 10-minute steps. If no trace shows an event,
the constant is a choice, and its comment says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from outrider.errors import UsageError
from outrider.model import Floats
from simulator.spec.fleets import TrafficSpec

DAY_SECONDS = 86400.0
WEEK_SECONDS = 7 * DAY_SECONDS
MONDAY = 4 * DAY_SECONDS  # 1970-01-05, the first Monday of unix time
NOISE_SECONDS = 900.0

# ServeGen "small" total: 42 episodes above 1.25 x the 3-hour median in 14 days, 17 above 1.5 and 6 above
# 2.0 (so heights above the threshold fall off with a scale near .385), 1.5 slots of 10 minutes each.
BURSTS_PER_DAY = 3.0
BURST_LEAST, BURST_SCALE, BURST_MOST = 1.25, 0.385, 3.0
BURST_SECONDS = 900.0
BURST_RAMP_SECONDS = 60.0
BURST_SLOT_SECONDS = 600.0
BURST_SLOTS_BACK = 6  # no burst lasts longer than an hour
# Scheduled bursts come in every slot and are mild: a healthy fleet can serve them.
ORDERED_BURST_FACTOR, ORDERED_BURST_SECONDS, ORDERED_BURSTS_SECONDS = 1.2, 300.0, 3600.0
BURST_NOISE_RATIO = 0.032  # robust deviation from the 3-hour median: ServeGen .032, Azure .031
# Azure: Saturday and Sunday have 0.54 and 0.52 of the busiest weekday; a public holiday is assumed to be like them.
HOLIDAY_FACTOR = 0.53
# Assumptions: no trace shows these events.
HOLIDAY_RAMP_SECONDS = 4 * 3600.0
LAUNCH_FACTOR, LAUNCH_RAMP_SECONDS, LAUNCH_DECAY_SECONDS = 1.3, 1200.0, 6 * 3600.0
OUTAGE_SECONDS, OUTAGE_LEFT = 1200.0, 0.03
REBOUND_FACTOR, REBOUND_DECAY_SECONDS = 1.45, 600.0
SHIFT_SECONDS, SHIFT_RAMP_SECONDS, SHIFT_RATIO = 4 * 3600.0, 1800.0, 0.6
WAVE_SECONDS, WAVE_FACTOR = 2400.0, 2.5
STORM_SECONDS, STORM_TRIGGER_SECONDS, STORM_FACTOR, STORM_RETRIES = 900.0, 180.0, 1.9, 0.9


def _neutral() -> Floats:
    return np.ones(1)


def _none() -> Floats:
    return np.zeros(1)


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a service, each of shape (times,) or (1,). ``rate`` is relative to the daily peak.

    ``prompt``, ``output`` and ``cached`` multiply the default lengths and the cached share; ``shift`` (0-1) is the
    share of traffic that has moved to the service's last tenant; ``retries`` per failed or slow request.
    """

    rate: Floats
    prompt: Floats = field(default_factory=_neutral)
    output: Floats = field(default_factory=_neutral)
    cached: Floats = field(default_factory=_neutral)
    shift: Floats = field(default_factory=_none)
    retries: Floats = field(default_factory=_none)


Shape = Callable[[TrafficSpec, Floats, int], Load]


def load(spec: TrafficSpec, times: Floats, salt: int) -> Load:
    """Returns a service's traffic at ``times`` (unix seconds). Raises UsageError for an unknown shape."""
    if spec.shape not in SHAPES:
        raise UsageError(f"{spec.shape!r} is not a load shape", hint=f"shapes are: {', '.join(SHAPES)}")
    return SHAPES[spec.shape](spec, times, salt)


def salt_of(seed: int, name: str) -> int:
    """Returns a number that makes the noise of a service unique."""
    return int((seed * 1_000_003 + sum(ord(c) * 257**i for i, c in enumerate(name[:6]))) % 2**63)


# --- shapes ---------------------------------------------------------------------------------------------


def steady(spec: TrafficSpec, times: Floats, salt: int) -> Load:
    """Constant peak load with slow noise."""
    return Load(_noise(spec.noise_ratio, times, salt))


def diurnal(spec: TrafficSpec, times: Floats, salt: int) -> Load:
    """Daily waves without weekends."""
    return Load(_day(spec, times) * _noise(spec.noise_ratio, times, salt))


def weekly(spec: TrafficSpec, times: Floats, salt: int) -> Load:
    """Daily waves with less load on weekends."""
    return Load(_week(spec, times) * _noise(spec.noise_ratio, times, salt))


def bursty(spec: TrafficSpec, times: Floats, salt: int) -> Load:
    """Weekly load with bursts of minutes, as in the ServeGen total, or a series of bursts from ``event_at`` on."""
    noise = _noise(max(spec.noise_ratio, BURST_NOISE_RATIO), times, salt)
    bursts = _bursts(times, salt) if spec.event_at is None else _row_of_bursts(spec, times - spec.event_at)
    return Load(_week(spec, times) * noise * bursts)


def launch_day(spec: TrafficSpec, times: Floats, salt: int) -> Load:
    """Weekly load with a launch: a rise within minutes that fades over the day."""
    since, factor = _since(spec, times, salt), spec.event_factor or LAUNCH_FACTOR
    decay = spec.event_seconds or LAUNCH_DECAY_SECONDS
    extra = np.clip(since / LAUNCH_RAMP_SECONDS, 0.0, 1.0) * np.exp(-np.maximum(since, 0.0) / decay)
    return Load(weekly(spec, times, salt).rate * (1.0 + (factor - 1.0) * extra))


def holiday(spec: TrafficSpec, times: Floats, salt: int) -> Load:
    """Weekly load with one day like a Sunday."""
    since, lasts = _since(spec, times, salt, whole_day=True), spec.event_seconds or DAY_SECONDS
    inside = _plateau(since, lasts, min(HOLIDAY_RAMP_SECONDS, lasts / 3))
    factor = spec.event_factor or HOLIDAY_FACTOR
    return Load(_day(spec, times) * _weekend(spec, times, inside, factor) * _noise(spec.noise_ratio, times, salt))


def outage_rebound(spec: TrafficSpec, times: Floats, salt: int) -> Load:
    """An upstream outage: almost no requests for a while, then all waiting clients at once."""
    since, lasts = _since(spec, times, salt), spec.event_seconds or OUTAGE_SECONDS
    factor = spec.event_factor or REBOUND_FACTOR
    after = np.maximum(since - lasts, 0.0)
    rebound = np.where(since >= lasts, (factor - 1.0) * np.exp(-after / REBOUND_DECAY_SECONDS), 0.0)
    gone = (1.0 - OUTAGE_LEFT) * _plateau(since, lasts, 30.0)
    return Load(weekly(spec, times, salt).rate * (1.0 - gone + rebound))


def mix_shift(spec: TrafficSpec, times: Floats, salt: int) -> Load:
    """A growing share of the last tenant; without tenants, longer prompts and shorter outputs."""
    lasts = spec.event_seconds or SHIFT_SECONDS
    inside = _plateau(_since(spec, times, salt), lasts, min(SHIFT_RAMP_SECONDS, lasts / 3))
    return Load(weekly(spec, times, salt).rate, shift=inside * (spec.event_factor or SHIFT_RATIO))


def long_prompts(spec: TrafficSpec, times: Floats, salt: int) -> Load:
    """A wave of long prompts at the default rate."""
    lasts, factor = spec.event_seconds or WAVE_SECONDS, spec.event_factor or WAVE_FACTOR
    since = _since(spec, times, salt)
    swell = np.where((since >= 0) & (since < lasts), np.sin(np.pi * np.clip(since / lasts, 0.0, 1.0)) ** 2, 0.0)
    return Load(weekly(spec, times, salt).rate, prompt=1.0 + (factor - 1.0) * swell)


def retry_storm(spec: TrafficSpec, times: Floats, salt: int) -> Load:
    """Clients that retry late requests, and a short peak that makes requests late."""
    since, lasts = _since(spec, times, salt), spec.event_seconds or STORM_SECONDS
    peak = _plateau(since, min(STORM_TRIGGER_SECONDS, lasts), 20.0)
    retries = np.where((since >= 0) & (since < lasts), STORM_RETRIES, 0.0)
    factor = spec.event_factor or STORM_FACTOR
    return Load(weekly(spec, times, salt).rate * (1.0 + (factor - 1.0) * peak), retries=retries)


def trace(spec: TrafficSpec, times: Floats, salt: int) -> Load:
    """A recorded trace, scaled to the service's peak. Raises UsageError if the service has no trace."""
    del salt
    if spec.trace is None:
        raise UsageError("the load shape trace needs a trace", hint="set TrafficSpec.trace to a result of read_trace")
    return Load(spec.trace.at(times) / max(spec.trace.peak, 1e-9))


SHAPES: dict[str, Shape] = {
    "steady": steady,
    "diurnal": diurnal,
    "weekly": weekly,
    "bursty": bursty,
    "launch-day": launch_day,
    "holiday": holiday,
    "outage-rebound": outage_rebound,
    "mix-shift": mix_shift,
    "long-prompts": long_prompts,
    "retry-storm": retry_storm,
    "trace": trace,
}


# --- parts of shapes ------------------------------------------------------------------------------------


def _day(spec: TrafficSpec, times: Floats) -> Floats:
    hours = (times % DAY_SECONDS) / 3600.0
    phase = 2 * np.pi * (hours - spec.peak_hour) / 24.0
    # The second harmonic widens the working day and narrows the night.
    wave = 0.5 + 0.47 * np.cos(phase) + 0.09 * np.sin(2 * phase) - 0.06 * np.cos(2 * phase)
    return np.asarray(spec.trough_ratio + (1 - spec.trough_ratio) * np.clip(wave, 0.0, 1.0), dtype=np.float64)


def _week(spec: TrafficSpec, times: Floats) -> Floats:
    return _day(spec, times) * _weekend(spec, times, np.zeros(1), 1.0)


def _weekend(spec: TrafficSpec, times: Floats, holiday: Floats, factor: float) -> Floats:
    """Returns the load factor of weekends and holidays; a holiday on a weekend has the weekend's load."""
    weekend = (np.floor(times / DAY_SECONDS) + 3) % 7 >= 5  # 1970-01-01 was a Thursday; 0 is Monday
    usual = np.where(weekend, spec.weekend_ratio, 1.0)
    return np.asarray(np.minimum(usual, 1.0 - (1.0 - factor) * holiday), dtype=np.float64)


def _plateau(since: Floats, lasts: float, ramp: float) -> Floats:
    """Returns 0 outside [0, lasts], 1 inside, with linear edges of ``ramp`` seconds."""
    return np.asarray(np.clip(np.minimum(since / ramp, (lasts - since) / ramp), 0.0, 1.0), dtype=np.float64)


def _since(spec: TrafficSpec, times: Floats, salt: int, whole_day: bool = False) -> Floats:
    """Returns seconds since the latest start of the shape's event; negative before a fixed one."""
    if spec.event_at is not None:
        return np.asarray(times - spec.event_at, dtype=np.float64)
    week = np.floor((times - MONDAY) / WEEK_SECONDS)
    result = times - _begins(week, salt, whole_day)
    return np.where(result >= 0, result, times - _begins(week - 1, salt, whole_day))


def _begins(week: Floats, salt: int, whole_day: bool) -> Floats:
    """Returns the start of a week's event: on a weekday, between 9 and 17 UTC unless it takes whole days."""
    drawn = uniform(week, salt + 11)
    day = np.floor(drawn * 5)
    hour = 0.0 if whole_day else 9.0 + 8.0 * uniform(week, salt + 12)
    return np.asarray(MONDAY + week * WEEK_SECONDS + day * DAY_SECONDS + hour * 3600.0, dtype=np.float64)


def _bursts(times: Floats, salt: int) -> Floats:
    """Returns the factor of the highest current burst; each slot of 10 minutes may start one."""
    newest = np.floor(times / BURST_SLOT_SECONDS)
    result = np.ones(times.shape)
    for back in range(BURST_SLOTS_BACK + 1):
        slot = newest - back
        begins = uniform(slot, salt + 1) < BURSTS_PER_DAY * BURST_SLOT_SECONDS / DAY_SECONDS
        if not begins.any():
            continue
        start = (slot + uniform(slot, salt + 2)) * BURST_SLOT_SECONDS
        lasts = np.clip(-BURST_SECONDS * np.log1p(-uniform(slot, salt + 3)), 300.0, 3000.0)
        height = np.minimum(BURST_LEAST - BURST_SCALE * np.log1p(-uniform(slot, salt + 4)), BURST_MOST)
        edge = np.minimum(times - start, start + lasts - times) / BURST_RAMP_SECONDS
        result = np.maximum(result, np.where(begins, 1.0 + (height - 1.0) * np.clip(edge, 0.0, 1.0), 1.0))
    return result


def _row_of_bursts(spec: TrafficSpec, since: Floats) -> Floats:
    """Returns the factor of equal bursts, one in each slot of 10 minutes from the event on."""
    under_way = (since >= 0) & (since < (spec.event_seconds or ORDERED_BURSTS_SECONDS))
    burst = _plateau(since % BURST_SLOT_SECONDS, ORDERED_BURST_SECONDS, BURST_RAMP_SECONDS)
    return np.asarray(1.0 + np.where(under_way, ((spec.event_factor or ORDERED_BURST_FACTOR) - 1.0) * burst, 0.0))


def _noise(ratio: float, times: Floats, salt: int) -> Floats:
    """Returns a slow factor around 1: smoothly interpolated normal values every ``NOISE_SECONDS``."""
    position = times / NOISE_SECONDS
    slot = np.floor(position)
    share = (1 - np.cos(np.pi * (position - slot))) / 2
    joined = _gauss(slot, salt) * (1 - share) + _gauss(slot + 1, salt) * share
    return np.asarray(np.clip(1.0 + ratio * joined, 0.5, 1.5), dtype=np.float64)


def _mixed(state: np.ndarray) -> np.ndarray:
    """Applies one round of splitmix64."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))


def _seeded(slots: Floats, salt: int) -> np.ndarray:
    numbers = slots.astype(np.int64).astype(np.uint64)
    return np.asarray(numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt % 2**63))


def uniform(slots: Floats, salt: int) -> Floats:
    """Returns a number in [0, 1) for each integer slot: random access, no state."""
    return np.asarray((_mixed(_mixed(_seeded(slots, salt))) >> np.uint64(11)).astype(np.float64) / 2**53)


def _gauss(slots: Floats, salt: int) -> Floats:
    state, total = _seeded(slots, salt), np.zeros(slots.shape)
    for _ in range(4):  # a sum of four uniforms approximates a normal distribution
        state = _mixed(state)
        total += (state >> np.uint64(11)).astype(np.float64) / 2**53 - 0.5
    return np.asarray(total * np.sqrt(3.0), dtype=np.float64)
