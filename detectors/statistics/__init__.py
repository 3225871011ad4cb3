"""Baselines, residuals, trends, peer groups, isolation forest, ensemble, alarm budgets.

Does not know signal names; imports ``detectors.base`` only.
"""
