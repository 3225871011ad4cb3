"""Error of a replay against its recording, and noise of the recording itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.fleet.recorded.reading import GAUGES, Recording
from benchmarks.fleet.recorded.replaying import Replay
from outrider.model import Floats

SMOOTHED_SCRAPES = 6  # half a minute
QUANTILES = {"ttft_p50": 0.5, "ttft_p95": 0.95}
LEAST_LEVEL = {"running": 0.5, "waiting": 0.5, "kv": 0.02}  # a lower mean reflects chance, not load
_RESAMPLES, _BLOCK_SECONDS = 400, 30.0


@dataclass(frozen=True, slots=True)
class Error:
    """One quantity of one recording. ``ratio`` = (replayed - recorded) / recorded.

    Of a gauge ``recorded`` is its mean over the scrapes, ``shape`` the mean absolute difference of the two
    series after a moving mean over half a minute, as a share of ``recorded`` (None for a quantile). ``noise``
    is the standard error of ``recorded`` by resampling blocks of half a minute, as a share of it (too wide
    where the load has a trend). ``judged`` is False where there is too little to measure.
    """

    recording: str
    quantity: str
    recorded: float
    replayed: float
    ratio: float | None
    shape: float | None
    noise: float | None
    judged: bool


def errors(recording: Recording, replayed: Replay, model: int = 0, *, unseen: bool = False) -> list[Error]:
    """Every quantity of one replayed model: the gauges, and the quantiles of the time to the first token.

    ``unseen``: only requests that came, and scrapes that were made, in the minutes that no fit looked at.
    """
    result = []
    seen = ~(recording.shown(recording.scraped_at) & unseen)
    for name in GAUGES:
        ours, theirs = replayed.series[name][seen, model], recording.series[name][seen]
        level = float(theirs.mean())
        difference = np.abs(smoothed(replayed.series[name][:, model]) - smoothed(recording.series[name]))
        shape = float(difference[seen].mean())
        noise = _noise(recording.scraped_at[seen], theirs, None)
        result.append(_error(recording.name, name, level, float(ours.mean()), shape, noise, level >= LEAST_LEVEL[name]))
    came = ~(recording.shown(recording.at) & unseen)
    for name, share in QUANTILES.items():
        theirs, ours = recording.ttft[came], replayed.ttft[model, came]
        noise = _noise(recording.at[came], theirs, share)
        value = float(np.quantile(theirs, share))
        result.append(_error(recording.name, name, value, float(np.quantile(ours, share)), None, noise, True))
    return result


def smoothed(series: Floats) -> Floats:
    """The moving mean over half a minute; at the ends over what there is."""
    ones = np.ones(SMOOTHED_SCRAPES)
    return np.asarray(np.convolve(series, ones, "same") / np.convolve(np.ones(series.size), ones, "same"))


def _error(
    name: str, quantity: str, theirs: float, ours: float, shape: float | None, noise: float, judged: bool
) -> Error:
    def share(value: float | None) -> float | None:
        return None if value is None or theirs == 0 else value / theirs

    return Error(name, quantity, theirs, ours, share(ours - theirs), share(shape), share(noise), judged)


def _noise(at: Floats, values: Floats, quantile: float | None) -> float:
    """Standard error of the mean, or of a quantile, from resampled blocks of time."""
    random = np.random.default_rng(1)
    block = ((at - at[0]) // _BLOCK_SECONDS).astype(np.int64)
    parts = [values[block == number] for number in np.unique(block)]
    drawn = random.integers(len(parts), size=(_RESAMPLES, len(parts)))
    made = [np.concatenate([parts[place] for place in row]) for row in drawn]
    return float(np.std([part.mean() if quantile is None else np.quantile(part, quantile) for part in made]))
