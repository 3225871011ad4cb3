"""The kernel: types, protocols and vocabulary shared by every stage.

Contains the model, the ports between stages, the signal catalog, the topology, units, clocks, errors, logs, audit
records and texts. Must not import another top-level package, use a network or know a database.
"""
