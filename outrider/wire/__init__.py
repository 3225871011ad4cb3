"""Network formats: remote-write messages, PromQL, HTTP credentials, pagination positions, label limits, safe text.

Must not import another part of ``outrider`` except errors.
"""
