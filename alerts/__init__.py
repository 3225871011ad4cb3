"""Alerts: rules, the pending -> firing -> resolved state machine, silences, on-call schedules, notifications.

Reads findings, never values. Only ``notify`` uses the network and only ``rules.files`` reads files.
"""
