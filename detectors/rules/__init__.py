"""Rule expressions, thresholds, SLO burn rates, and the tuning of thresholds by feedback."""
