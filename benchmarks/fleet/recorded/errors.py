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

    For a gauge, ``recorded`` is its mean over the scrapes. ``shape`` is the mean absolute difference of the two series
    after a moving mean over half a minute, relative to ``recorded`` (None for a quantile). ``noise`` is the relative
    standard error of ``recorded``, from resampled blocks of half a minute; it is too large if the load has a trend.
    ``judged`` is False if the level is too low to score.
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
    """Returns the errors of one replayed model: the gauges, and the quantiles of TTFT.

    ``unseen``: only requests and scrapes of the minutes that the fit did not use.
    """
    result = []
    shown = ~(recording.shown(recording.scraped_at) & unseen)
    for name in GAUGES:
        model_values, recorded = replayed.series[name][shown, model], recording.series[name][shown]
        level = float(recorded.mean())
        difference = np.abs(smoothed(replayed.series[name][:, model]) - smoothed(recording.series[name]))
        shape = float(difference[shown].mean())
        noise = _noise(recording.scraped_at[shown], recorded, None)
        result.append(
            _error(recording.name, name, level, float(model_values.mean()), shape, noise, level >= LEAST_LEVEL[name])
        )
    counted = ~(recording.shown(recording.at) & unseen)
    for name, share in QUANTILES.items():
        recorded, model_values = recording.ttft[counted], replayed.ttft[model, counted]
        noise = _noise(recording.at[counted], recorded, share)
        value = float(np.quantile(recorded, share))
        result.append(_error(recording.name, name, value, float(np.quantile(model_values, share)), None, noise, True))
    return result


def smoothed(series: Floats) -> Floats:
    """Returns the moving mean over half a minute, over fewer scrapes at the ends."""
    ones = np.ones(SMOOTHED_SCRAPES)
    return np.asarray(np.convolve(series, ones, "same") / np.convolve(np.ones(series.size), ones, "same"))


def _error(
    name: str, quantity: str, recorded: float, replayed: float, shape: float | None, noise: float, judged: bool
) -> Error:
    def share(value: float | None) -> float | None:
        return None if value is None or recorded == 0 else value / recorded

    return Error(name, quantity, recorded, replayed, share(replayed - recorded), share(shape), share(noise), judged)


def _noise(at: Floats, values: Floats, quantile: float | None) -> float:
    """Returns the standard error of the mean, or of a quantile, from resampled blocks of time."""
    random = np.random.default_rng(1)
    block = ((at - at[0]) // _BLOCK_SECONDS).astype(np.int64)
    parts = [values[block == number] for number in np.unique(block)]
    drawn = random.integers(len(parts), size=(_RESAMPLES, len(parts)))
    resampled = [np.concatenate([parts[place] for place in row]) for row in drawn]
    return float(np.std([part.mean() if quantile is None else np.quantile(part, quantile) for part in resampled]))
