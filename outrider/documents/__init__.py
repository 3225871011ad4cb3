"""Output formats: JSON serialization, summary sentences, graph drawings.

Must not import ``outrider.ports`` or ``outrider.testing``.
"""
