"""Inputs of the sizing commands: load tests, calibrations, prices, traces.

Must not import ``service.cli``, ``service.api``, ``drills``, ``evaluation`` or ``agent``.
"""
