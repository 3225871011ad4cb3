"""Drills: faults injected into a simulated fleet, scored against the findings of a platform that monitors it.

This package joins simulator and platform. The platform receives pages, batches and events, and returns alerts and
actions; it never reads the ground truth. Called by the command line, the API, game days and the benchmarks.
"""
