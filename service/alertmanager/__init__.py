"""Alerts and silences exchanged with Alertmanagers: state, not messages.

Sends the alerts that fire and that ended, and keeps silences equal on both sides. Must not decide what fires.
"""
