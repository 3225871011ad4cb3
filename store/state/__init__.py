"""The state store: decisions, plans, topology history, change log, ingest buffer.

Must not import ``store.tsdb``.
"""
