"""Shared parts of all detectors: state arrays, hysteresis, condition durations, findings, optional abilities.

Imports no other package of ``detectors``.
"""
