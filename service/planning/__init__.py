"""Planner inputs from the store, the planning cadence, the nightly fits."""
