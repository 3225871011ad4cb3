"""Descriptions of simulated fleets: services, engines, pools, device types, names, recorded traffic.

Imports no other package of ``simulator``.
"""
