"""The kernel: the words every stage shares.

Here live the shared types, the protocols between stages, the signal catalogue, the topology,
units, clocks, errors, logs, audit records and texts. Nothing here imports another package of
ours, reads a network or knows a database.
"""
