"""Detectors of GPU and device faults: XIDs, memory leaks, throttling, power."""
