"""Cycles buffered on disk while the metric store is unavailable."""
