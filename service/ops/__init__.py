"""Operator tasks: backup, backfill, one-off collection, probes, replay, the demo.

Must not import ``service.cli``.
"""
