"""The flight recorder and the reader of its recordings.

Must not fetch anything: scrapes are handed in.
"""
