"""What the accelerators of this machine say, read on the machine itself.

What lives here: NVML (``nvml``), DCGM by NVIDIA's own bindings (``dcgm``), the words both answer with
(``reading``), the page they are shown on (``page``), and who owns a process (``processes``). What must
not: HTTP, and anything that changes a device. Who calls it: ``service.agent.server`` only. Everybody else reads
the agent's page, or that of another exporter, through an adapter.
"""
