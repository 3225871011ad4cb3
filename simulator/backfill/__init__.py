"""The history of a fleet, written straight into a store."""
