"""The nightly forecasters. The configuration selects among them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from planner.forecast.ets_mstl import Smoothing
from planner.forecast.lstm import Lstm
from planner.forecast.nightly_fit import Forecaster
from planner.forecast.prophet import LogProphet

FORECASTERS: Mapping[str, Forecaster] = MappingProxyType(
    {
        forecaster.name: forecaster
        for forecaster in (
            LogProphet(),
            Smoothing("autoets", "AutoETS", daily=False),
            Smoothing("mstl", "MSTL", daily=True),
            Lstm(),
        )
    }
)
