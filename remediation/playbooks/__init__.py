"""Playbooks: the repair steps of each fault, as data.

Only ``files`` reads files. Must not import ``decide`` or ``actuators``.
"""
