"""HTTP servers of a simulated fleet: exposition pages, logs, APIs, control, faults."""
