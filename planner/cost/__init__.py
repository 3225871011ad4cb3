"""Cost of a fleet: offers, GPU mix, reservations, and the Pareto front of cost and latency.

Must not import ``capacity``, ``forecast`` or ``replay``.
"""
