"""Alerts: rules, the pending -> firing -> resolved state machine, and what is said to whom.

Here live the packaged rules, their loader, the pure state machine, silences and the planning of
messages. The senders live in ``alerts.notify``, the only part that knows a network. Values are never
looked at here: a rule's expression is compiled into a detector, and this package reads findings.
``service`` calls it once a cycle.
"""
