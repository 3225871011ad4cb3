"""Replicas and GPUs needed: formula, demand, lead time, prescaling, plan and its derivation.

Must not import ``cost``, ``traffic``, ``manifests`` or ``replay``.
"""
