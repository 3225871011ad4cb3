"""Baselines, residuals, trends, peer groups, isolation forest, ensemble, alarm budgets.

Knows no signal by name.
"""
