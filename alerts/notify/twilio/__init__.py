"""Twilio: SMS and calls that read a text aloud.

Must not put a token or a number into an error text.
"""
