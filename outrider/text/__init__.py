"""Texts and hand-written YAML: translations, file errors with line and key."""
