"""Drills: faults injected into a simulated fleet, scored against the findings of a platform that monitors it.

The platform under test must not read the ground truth. Must not import ``service.api`` or ``service.evaluation``.
"""
