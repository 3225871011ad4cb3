"""Alert rules outside the cycle: tests with time-series fixtures, import and export of Prometheus rules.

Must not import ``runtime``, ``api`` or ``wiring``.
"""
