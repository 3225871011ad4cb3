"""Generic anomaly detectors: seasonal, multivariate, level shift, drift, robust z-score."""
