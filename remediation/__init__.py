"""Remediation: what to do about an incident or a plan, and whether it is allowed.

``decide`` is pure: it returns decisions, each with its reason. ``playbooks`` holds the steps per fault, ``actuators``
the only access to clusters. ``service`` calls ``policy.decide`` once a cycle and passes intended actions to a
dispatcher.
"""
