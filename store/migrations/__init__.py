"""Alembic revisions of both databases and the code that applies them.

Must not import ``store.tsdb`` or ``store.state``.
"""
