"""Detectors of load and of the request path: saturation, queueing, gateways, blackbox probes, KPIs.

Must not import ``anomaly``, ``engine``, ``rules`` or ``rca``.
"""
