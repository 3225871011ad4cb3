"""Databases: connections, backends (SQLite, PostgreSQL), leader lock, atomic file swap.

Knows no table of ours.
"""
