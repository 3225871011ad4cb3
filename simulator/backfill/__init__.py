"""Backfilled history of a simulated fleet, as blocks for a store."""
