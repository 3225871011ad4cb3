"""The metric store and the state store, with their codecs and migrations.

Both implement ``outrider.ports``: metrics in columnar blocks; state as decisions, intents, outbox and audit.
Each exists on SQLite, on PostgreSQL and in memory. Must not detect or decide anything. ``service`` opens the
stores and hands them to the stages.
"""
