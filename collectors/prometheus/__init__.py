"""An existing Prometheus-compatible server as a metrics source, and adapters as PromQL."""
