"""Ingest endpoints: remote write, OTLP, KPIs, logs."""
