"""Inputs of the sizing commands: load tests, calibrations, prices, traces."""
