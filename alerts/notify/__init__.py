"""Notifiers, one file per channel. The only part of ``alerts`` that uses the network.

Each delivers one message or raises DeliveryError, with ``retryable`` set. Error texts never contain an address or a
secret of the channel. The dispatcher in ``service`` calls them.
"""
