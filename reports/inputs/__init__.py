"""Reads the inputs of a report from the stores: the week's values and decisions, by service and GPU.

Must not import ``document``.
"""
