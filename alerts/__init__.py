"""Alerts: rules, the pending -> firing -> resolved state machine, silences, and notifications.

Rules are compiled into detectors elsewhere; this package reads their findings, never values. Only ``notify`` uses the
network and only ``rules.files`` reads files. ``service`` calls it once a cycle.
"""
