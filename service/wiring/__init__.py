"""Builds a platform from settings, one module per part: the only place that picks implementations.

Must not import ``service.runtime``, ``service.api`` or a package above them.
"""
