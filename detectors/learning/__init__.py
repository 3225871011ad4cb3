"""Detectors that learn from history: warm-up, conditional and slow-signal bases, dormant state."""
