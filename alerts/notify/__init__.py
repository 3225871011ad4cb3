"""Notifiers, one file per channel. The only part of ``alerts`` that uses the network.

Each delivers one message or raises DeliveryError. Must not put an address or a secret into an error text.
"""
