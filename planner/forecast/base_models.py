"""The cheap members of the ensemble, vectorized over series, origins and leads; and a direct regression.

A level member is a day profile plus the mean deviation of the newest slots, which fades with the lead.
"""

from __future__ import annotations

import numpy as np

from planner.forecast.day_profiles import Inputs
from planner.forecast.grid import Matrix, Slots

_CARRIED = (
    # profile, tens of minutes whose mean deviation is carried, tens of minutes after which 1/e of it is left
    ("median", 3, 18.0),
    ("median", 2, 40.0),
    ("median", 18, 72.0),
    ("yesterday", 6, 300.0),
    ("fading", 2, 40.0),
    ("mean", 2, 40.0),
    ("mean", 6, 300.0),
    ("week", 6, 300.0),
)
_REGRESSED = ("median", (1, 6, 18, 72))
_RIDGE = 0.01
_RIDGE_SLOTS = 0.15
_HALF_LIFE_DAYS = 7.0
_OUTLIER_SPREADS = 6.0
_FARTHEST = 2.5
"""Largest deviation of a regression from the profile, in logs: exp(2.5), a factor of twelve."""

LAST, YESTERDAY = 0, 1
NAMES = (
    "last-value",
    "seasonal-naive",
    "last-hour",
    "median-day",
    "last-value-by-mean-day",
    *(f"{profile}-day+{tens * 10}min" for profile, tens, _ in _CARRIED),
    "regression",
    "week",
)


def predict(inputs: Inputs, origins: Slots, leads: Slots, weights: Matrix) -> Matrix:
    """Logs forecast by each member: (members, series, origins, leads).

    ``leads`` count from 1, the first slot unknown at an origin. ``weights`` are those of ``regress`` at these origins
    and leads. No NaN after the first value: a member without a forecast takes the last value.
    """
    season = inputs.grid.season
    reach = inputs.profiles["mean"].shape[1]
    wanted = origins[:, None] + leads[None, :] - 1
    wanted = np.where(wanted < reach, wanted, reach - season + (wanted - reach) % season)
    at = {name: profile[:, wanted] for name, profile in inputs.profiles.items()}
    last = np.broadcast_to(inputs.newest[:, origins, None], at["mean"].shape)
    newest = inputs.profiles["mean"][:, np.maximum(origins - 1, 0)]
    members = [
        last,
        at["yesterday"],
        np.broadcast_to(inputs.median[:, origins, None], last.shape),
        at["median"],
        last + at["mean"] - newest[:, :, None],
    ]
    for profile, tens, decay in _CARRIED:
        left = np.exp(-leads / (decay * inputs.grid.slots(1))).astype(last.dtype)
        members.append(at[profile] + inputs.levels[profile, tens][:, origins, None] * left)
    profile, levels = _REGRESSED
    off = np.stack([inputs.levels[profile, tens][:, origins] for tens in levels], axis=-1)
    carried = np.einsum("sof,solf->sol", off, weights, optimize=True)
    members.append(at[profile] + np.clip(carried, -_FARTHEST, _FARTHEST))
    members.append(at["week"])
    result = np.empty((len(members), *last.shape), last.dtype)
    for row, member in enumerate(members):
        np.copyto(result[row], member)
        np.copyto(result[row], last, where=np.isnan(result[row]))
    return result


def usable(inputs: Inputs) -> Matrix:
    """True if a member may be used for a series: (members, series). Weekly members need two weeks."""
    result = np.ones((len(NAMES), inputs.weekly.size), dtype=bool)
    for row, name in enumerate(NAMES):
        if name.startswith("week"):
            result[row] = inputs.weekly
    return result


def regress(inputs: Inputs, refits: Slots) -> Matrix:
    """Weights of a direct regression: (series, refits, anchors, features), each from the data known at its refit.

    At every anchor the deviation from the median day is regressed by ridge on its mean over the newest slots. Origins
    count half after a week; deviations beyond six mean ones are clipped.
    """
    profile, levels = _REGRESSED
    slots = inputs.values.shape[1]
    off = inputs.values - inputs.profiles[profile][:, :slots]
    known = (~np.isnan(off)).sum(axis=1, keepdims=True)
    spread = np.nansum(np.abs(off), axis=1, keepdims=True) / np.maximum(known, 1)
    off = np.clip(off, -_OUTLIER_SPREADS * spread, _OUTLIER_SPREADS * spread)
    features = np.stack([inputs.levels[profile, tens] for tens in levels], axis=-1)
    half = _HALF_LIFE_DAYS * inputs.grid.season
    weights = (~np.isnan(off) * 0.5 ** ((slots - np.arange(slots)) / half)).astype(off.dtype)
    off = np.nan_to_num(off)
    result = np.empty((off.shape[0], refits.size, inputs.grid.anchors.size, len(levels)), off.dtype)
    for column, lead in enumerate(inputs.grid.anchors):
        result[:, :, column] = _ridge(features, off, weights, int(lead), refits, half, inputs.grid.slots(1))
    return result


def _ridge(features: Matrix, off: Matrix, weights: Matrix, lead: int, refits: Slots, half: float, ten: int) -> Matrix:
    """(series, refits, features). An origin can be learned from once its target is known: ``lead`` slots later.

    ``weights`` (series, slots) belong to the targets, 0 if a target is missing.
    """
    slots, width = off.shape[1], features.shape[2]
    moments = np.zeros((off.shape[0], width, width), off.dtype)
    products = np.zeros((off.shape[0], width, 1), off.dtype)
    result = np.zeros((off.shape[0], refits.size, width), off.dtype)
    begin = 0
    for row, refit in enumerate(refits):
        end = max(0, int(refit) - lead + 1)
        if end > begin:
            targets = slice(begin + lead - 1, end + lead - 1)
            weighted = (features[:, begin:end] * weights[:, targets, None]).transpose(0, 2, 1)
            moments += weighted @ features[:, begin:end]
            products += weighted @ off[:, targets, None]
            begin = end
        prior = _RIDGE_SLOTS * ten * 0.5 ** ((slots - int(refit)) / half)
        ridge = np.eye(width) * (prior + _RIDGE * np.diagonal(moments, axis1=1, axis2=2)[:, None, :] + 1e-9)
        result[:, row] = np.linalg.solve(moments + ridge, products)[:, :, 0]
    return result
