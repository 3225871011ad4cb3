"""Actuators, one file a kind of cluster. The only part of ``remediation`` that touches the world.

Each performs one action, idempotent by its id, or raises ActuationError. The dispatcher in ``service``
calls them.
"""
