"""The simulated hosts and devices: clocks, power, heat, memory, CPU, disk, network.

Must not import ``exporters``, ``faults`` or, at run time, ``fleet``.
"""
