"""Drill scores: truth against observation, grouping, calibration, recovery. Pure."""
