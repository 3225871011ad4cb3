"""Scraping over HTTP: one attempt per target and its result, target health, engine health, series limits.

Must not map metrics to signals.
"""
