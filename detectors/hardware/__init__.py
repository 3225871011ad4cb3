"""Detectors of GPU and device faults: XIDs, memory leaks, throttling, power.

Imports ``base``, ``statistics`` and ``learning`` only.
"""
