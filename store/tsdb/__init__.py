"""The metric store: chunk codec, blocks, roll-ups, retention, maintenance, window reads.

Must not import ``store.state``.
"""
