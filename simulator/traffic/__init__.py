"""Load: arrival rates, traffic shapes, recorded traces, gateways.

Must not import ``cluster``, ``hardware`` or ``fleet``.
"""
