"""Builds a platform from settings, one module per part: the only place that picks implementations."""
