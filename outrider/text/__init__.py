"""Texts and hand-written YAML: translations, file errors with line and key.

Must not import ``outrider.model`` or ``outrider.vocabulary``.
"""
