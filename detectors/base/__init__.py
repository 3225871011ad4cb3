"""What every detector shares: state arrays, hysteresis, condition durations, findings.

Imports no other package of ``detectors``.
"""
