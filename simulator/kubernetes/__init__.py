"""Kubernetes API view of the fleet: objects, lists, watches.

Must not import ``servers``, ``scenarios`` or ``backfill``.
"""
