"""Prometheus text and OpenMetrics: parser, format sniffing, template cache, writer.

Imports no other package of ``collectors``.
"""
