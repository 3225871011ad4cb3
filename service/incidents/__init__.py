"""Incidents beside the cycle: narratives, topology of the time, feedback, rule tuning.

Must not import ``service.scaling``, ``service.sources`` or a package above them.
"""
