"""Blackbox probes of services, as a client sees them.

Each probe sends one request and returns a ``ProbeResult``. Must not judge failures: detectors do.
"""

# The engine probe beside each scrape is ``collectors.scrape.engine_health``.
