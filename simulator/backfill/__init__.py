"""Backfilled history of a simulated fleet, as blocks for a store.

Must not import ``store``: the caller writes the blocks.
"""
