"""Base classes of detectors that learn from history: warm-up, conditional and slow signals, dormant state.

Imports ``detectors.base`` and ``detectors.statistics`` only.
"""
