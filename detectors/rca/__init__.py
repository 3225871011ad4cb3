"""Root-cause analysis: correlation, hypotheses, ranking, confidence, incident lifecycle, explanation."""
