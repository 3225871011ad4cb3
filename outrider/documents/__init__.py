"""What leaves as JSON, sentences or drawings: serialization, summaries, graph text."""
