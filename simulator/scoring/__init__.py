"""Drill scores: ground truth against observation, grouping, calibration, recovery. Pure."""
