"""Tencent Cloud (腾讯云): SMS and calls by text-to-speech templates.

Must not put a key or a number into an error text.
"""
