"""Remediation: what to do about an incident or a plan, and whether it may be done.

Here live the guard rails, the playbooks, the sessions and, in ``actions``, the actuators. Everything but
``actions`` is pure: it looks at what it is handed and returns decisions, each with its reason. ``service``
calls ``policy.decide`` once a cycle and hands what is intended to a dispatcher.
"""
