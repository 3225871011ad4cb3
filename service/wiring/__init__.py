"""Builds a platform from settings: the one place that picks implementations."""
