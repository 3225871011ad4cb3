"""Event sources and what they share: deduplication, entity resolution, redaction, XID lines.

Must not import a particular source (``kubernetes``, ``logs``).
"""
