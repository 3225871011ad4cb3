"""Administration of a store: backup, restore, copy, integrity checks.

Must not import ``store.remote`` or ``store.migrate``.
"""
