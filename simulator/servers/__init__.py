"""HTTP servers in front of a simulated fleet: exposition pages, logs, APIs, control, faults."""
