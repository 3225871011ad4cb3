"""The field's vocabulary as data: signals, faults, rules, SLOs, units, indicators.

Must not import ``outrider.records``, ``outrider.topology`` or ``outrider.ports``.
"""
