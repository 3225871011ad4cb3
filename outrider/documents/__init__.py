"""Output formats: JSON serialization, summary sentences, graph drawings."""
