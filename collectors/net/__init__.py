"""Network clients shared by the sources: HTTP with deadlines, DNS lookups.

Imports no other package of ``collectors``.
"""
