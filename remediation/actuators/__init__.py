"""Actuators, one file per kind of cluster. The only part of ``remediation`` with side effects.

Each performs one action, idempotent by its id, or raises ActuationError. Must not import ``remediation.decide``.
"""
