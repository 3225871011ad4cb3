"""Webhook formats of other monitors, decoded to received alerts: Alertmanager, Grafana, CloudEvents, mapped JSON.

Pure. Must not store, resolve entities or decide about a page.
"""
