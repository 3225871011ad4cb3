"""Kernel and engine logs, from files, ``/dev/kmsg``, the Kubernetes API or Loki, as events.

Must not scrape metrics.
"""
