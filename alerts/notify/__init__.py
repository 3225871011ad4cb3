"""Senders, one file a channel. The only part of ``alerts`` that knows a network.

Each delivers one message or raises DeliveryError, which says whether trying again can help. No error
text ever holds an address or a secret of the channel. The dispatcher in ``service`` calls them.
"""
