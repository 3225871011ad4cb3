"""Stored records other than decisions: change log, feedback, drills, ingest buffer."""
