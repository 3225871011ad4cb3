"""What crosses the network: remote-write messages, HTTP credentials, cursors, label limits.

Imports nothing else of ``outrider`` but errors and the clock.
"""
