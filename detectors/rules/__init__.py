"""Rule expressions, thresholds, SLO burn rates, and tuning of thresholds from feedback.

Must not import ``anomaly``, ``engine``, ``load`` or ``rca``.
"""
