"""Planner inputs from the store, the planning cadence, the nightly fits.

Must not import ``service.engine`` or a package above it.
"""
