"""Databases: connections, backends (SQLite, PostgreSQL), leader lock, atomic file swap.

Knows no table. Must not import another sub-package of ``store``.
"""
