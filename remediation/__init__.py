"""Remediation: actions for incidents and plans, and the guards that allow or refuse them.

``decide`` is pure: it returns decisions, each with its reason. ``playbooks`` holds the steps per fault, ``actuators``
the only access to clusters. ``service`` calls ``policy.decide`` once a cycle and passes intended actions to a
dispatcher.
"""
