"""Forecasts of one signal or of many, from what they did before.

The fast tier (``fast.py``) mixes cheap members for all series at once; forecasters that are fitted by night
(``forecasters.py``) join the mix of a series where they help (``choosing.py``).
Everything is a pure function of history.
"""

from planner.forecast.calendar import Calendar, Event
from planner.forecast.ensemble import QUANTILES, forecast_many
from planner.forecast.forecaster import by_night, forecast, forecast_rows
from planner.forecast.nightly_fit import Decided, Fits

__all__ = [
    "QUANTILES",
    "Calendar",
    "Decided",
    "Event",
    "Fits",
    "by_night",
    "forecast",
    "forecast_many",
    "forecast_rows",
]
