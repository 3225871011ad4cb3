"""Event sources and what they share: deduplication, entity resolution, redaction, XID lines."""
