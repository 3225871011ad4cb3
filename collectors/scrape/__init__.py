"""Scraping over HTTP: one attempt per target and its result, engine health beside it, series limits.

Must not map metrics to signals.
"""
