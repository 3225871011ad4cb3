"""Evaluated pages to signal batches: counter deltas, fault codes, service roll-ups, source precedence.

Pure given the state of the previous page; must not fetch anything.
"""
