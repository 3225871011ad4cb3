"""Records beside the decisions: change log, feedback, drills, ingest buffer."""
