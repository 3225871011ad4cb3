"""Detectors of node, pod, container, autoscaler and scrape-target faults.

Imports ``hardware`` and the layers below it only.
"""
