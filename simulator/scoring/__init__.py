"""Drill scores: ground truth against observation, grouping, calibration, recovery. Pure.

Must not import ``world`` or ``scenarios``.
"""
