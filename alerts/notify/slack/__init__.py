"""Slack: an incoming webhook, and a bot with one thread per incident.

Must not put an address or a token into an error text.
"""
