"""The field's vocabulary as data: signals, faults, rules, SLOs, units, indicators."""
