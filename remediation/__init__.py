"""Remediation: actions for incidents and plans, and the guards that allow or refuse them.

``decide`` is pure, only ``actuators`` accesses clusters. Must not import another stage.
"""
