"""What one replica carries: roofline, queueing, calibration, load tests, GPU and model catalogs."""
