"""Detectors of inference-engine faults: hang, death, slowness, errors, start-up, output validity.

Must not import ``anomaly``, ``load``, ``rules`` or ``rca``.
"""
