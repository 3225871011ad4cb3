"""Descriptions of simulated fleets: services, engines, pools, device types, names.

Imports no other package of ``simulator`` at run time.
"""
