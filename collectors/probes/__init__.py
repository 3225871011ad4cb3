"""Blackbox probes of services, as a client sees them.

Each probe sends one request to one endpoint and returns a ``ProbeResult``; ``scheduler`` runs them concurrently and
turns results into signals. Detectors judge failures. The engine probe beside each scrape is
``collectors.scrape.engine_health``.
"""
