"""Capacity planning: forecasts, calibration, formula, plan.

Pure: no clock, database or network. Only ``packaged_data`` reads files. Must not import another stage.
"""
