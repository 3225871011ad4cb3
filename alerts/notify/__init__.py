"""Notifiers, one file per channel. The only part of ``alerts`` that uses the network.

Each delivers one message or raises DeliveryError, which says whether a retry can help. Error texts never contain an
address or a secret of the channel. The dispatcher in ``service`` calls them.
"""
