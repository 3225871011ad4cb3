"""The simulated hosts and devices: clocks, power, heat, memory, CPU, disk, network, kubelets.

Must not import ``exporters``, ``faults`` or ``fleet``.
"""
