"""Adapters: loading, compiling and evaluating the YAML that maps metrics to signals.

Must not fetch anything: pages are handed in.
"""
