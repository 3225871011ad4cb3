"""Accelerators of this node: NVML and DCGM readers, their exposition page, and the owners of processes.

No HTTP, and nothing that changes a device. Only ``service.agent.server`` uses this package. All others read the
agent's page, or that of another exporter, through an adapter.
"""
