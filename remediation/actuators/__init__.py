"""Actuators, one file per kind of cluster. The only part of ``remediation`` with side effects.

Each performs one action, idempotent by its id, or raises ActuationError. The dispatcher in ``service`` calls them.
Must not import ``remediation.decide``.
"""
