"""Detectors of load and of the request path: saturation, queueing, gateways, probes, KPIs."""
