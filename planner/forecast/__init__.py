"""Forecasts of one signal: candidates, their back-test, and intervals from the errors it saw.

Pure functions of history. A forecaster is one function in one file, named in ``registry.py``.
"""

from planner.forecast.folds import Fits
from planner.forecast.select import QUANTILES, forecast

__all__ = ["QUANTILES", "Fits", "forecast"]
