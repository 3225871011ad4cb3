"""One collection round: scrape every target, normalise, carry forward, log page anomalies once.

Must not import a source of pages (``prometheus``, ``receive``, ``discovery``).
"""
