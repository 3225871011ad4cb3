"""Detection: windows of values in; findings, incidents and root causes out.

Contains the detectors (one file per thing to detect), the compiler of rule expressions, correlation and root-cause
analysis. Detectors are pure: window, topology, time and previous state in, findings and new state out. No clock,
store, network or other stage. Only ``packaged_data`` reads files. ``service`` is the only caller, through
``detectors.registry``.
"""
