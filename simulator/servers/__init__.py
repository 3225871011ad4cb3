"""HTTP servers of a simulated fleet: exposition pages, logs, APIs, control, faults.

No other package of ``simulator`` may import it.
"""
