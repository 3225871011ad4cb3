"""Procedures with states of their own, as data: the degrade ladder and the cluster switch.

Only ``files`` reads files. Must not import ``decide`` or ``actuators``.
"""
