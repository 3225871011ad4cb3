"""Root-cause analysis: correlation, hypotheses, ranking, confidence, incident lifecycle, explanation.

Imports detectors only for their constants and text helpers, never ``knowledge_graph``.
"""
