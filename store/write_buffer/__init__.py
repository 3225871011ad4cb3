"""Cycles buffered on disk while the metric store is unavailable.

Must not import ``store.sql`` or ``store.tsdb``.
"""
