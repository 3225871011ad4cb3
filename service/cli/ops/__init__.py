"""Commands that run and operate the platform.

Must not import commands of another folder.
"""
