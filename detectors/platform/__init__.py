"""Detectors of node, pod, container, autoscaler and scrape-target faults."""
