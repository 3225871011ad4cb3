"""Ingest endpoints: remote write, OTLP, KPIs, logs.

Decodes and forwards entries. Must not write to the metric store: the cycle does.
"""
