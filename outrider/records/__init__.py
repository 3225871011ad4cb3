"""Stored records other than decisions: change log, feedback, drills, ingest buffer.

Must not import ``outrider.ports``, ``outrider.topology`` or ``outrider.windows``.
"""
