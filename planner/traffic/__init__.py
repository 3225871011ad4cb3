"""Load-balancer weights: balance, weight changes, routes.

Must not import ``capacity``, ``forecast`` or ``replay``.
"""
