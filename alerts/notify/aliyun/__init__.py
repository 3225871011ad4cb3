"""Alibaba Cloud (阿里云): SMS and calls by text-to-speech templates.

Must not put a key or a number into an error text.
"""
