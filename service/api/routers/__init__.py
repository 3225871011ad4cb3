"""One router per resource of the HTTP API.

Must not decide: they serve results of the cycle and call pure functions.
"""
