"""Generic anomaly detectors: seasonal, multivariate, level shift, drift, robust z-score, operator feedback.

They name no fault and never page. Must not import ``engine``, ``load``, ``rules`` or ``rca``.
"""
