"""An existing Prometheus-compatible server as a metrics source, and adapters as PromQL.

Must not write to the server.
"""
