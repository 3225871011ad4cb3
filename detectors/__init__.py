"""Reads windows of values and says what is out of the ordinary, and which one thing is the cause.

Here live the detectors (one thing to detect, one file), the compiler of rule expressions, correlation
and root cause. Every detector is pure: a window, a topology, an instant and its own remembered state
go in, findings and the new state come out. No clock, no store, no network, and no other stage. Only
``service`` calls this package, through ``detectors.registry``.
"""
