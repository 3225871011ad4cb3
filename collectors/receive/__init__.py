"""Pushed data: remote write, OTLP, KPIs and webhooks, decoded and assembled into pages.

Must not open a port: the HTTP endpoints are in ``service.api.ingest``.
"""
