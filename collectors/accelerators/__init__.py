"""Accelerators of this node: NVML and DCGM readers, their exposition page, and the owners of processes.

Must not use HTTP or change a device. Only ``service.agent`` imports this package; others read the agent's page.
"""
