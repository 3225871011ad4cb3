"""The flight recorder and the reader of its recordings."""
