"""Capacity of one replica: roofline, queueing, calibration, load tests, GPU and model catalogs.

Must not import ``forecast`` or ``capacity``.
"""
