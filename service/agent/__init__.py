"""The agent of a GPU node: devices and kernel log of one machine, over HTTP.

Must not open a store or import ``service.wiring``: it runs beside models on every node and stays small.
"""
