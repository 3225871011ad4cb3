"""The metric store and the state store, each on SQLite, on PostgreSQL and in memory.

Both implement ``outrider.ports``. Must not detect or decide, or import another stage.
"""
