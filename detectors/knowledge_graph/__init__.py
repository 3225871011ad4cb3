"""The fault catalog joined with the live topology: build, query, draw.

Only ``service`` imports it. Must not import ``detectors.registry``.
"""
