"""The metric store on a Prometheus-compatible server: remote write and PromQL.

Only ``client`` uses the network. Must not import ``store.sql`` or ``store.state``.
"""
