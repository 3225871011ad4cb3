"""The forecasters that are fitted by night. The configuration says which of them are asked."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from planner.forecast.ets_mstl import Smoothing
from planner.forecast.lstm import Lstm
from planner.forecast.nightly_fit import Forecaster
from planner.forecast.prophet import LogProphet

FORECASTERS: Mapping[str, Forecaster] = MappingProxyType(
    {
        each.name: each
        for each in (
            LogProphet(),
            Smoothing("autoets", "AutoETS", daily=False),
            Smoothing("mstl", "MSTL", daily=True),
            Lstm(),
        )
    }
)
