"""Forecasts of one signal or of many, as a pure function of their history.

Must not import ``capacity``, ``cost``, ``traffic`` or ``replay``.
"""

# ``ensemble`` mixes cheap members for all series at once. Forecasters fitted nightly (``registry``) join the mix of a
# series if they reduce its past errors (``model_selection``).

from planner.forecast.calendar import Calendar, Event
from planner.forecast.ensemble import QUANTILES, forecast_many
from planner.forecast.forecaster import fit_nightly, forecast, forecast_rows
from planner.forecast.nightly_fit import Fits, NightlyDecision

__all__ = [
    "QUANTILES",
    "Calendar",
    "Event",
    "Fits",
    "NightlyDecision",
    "fit_nightly",
    "forecast",
    "forecast_many",
    "forecast_rows",
]
