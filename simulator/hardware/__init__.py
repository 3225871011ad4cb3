"""The simulated hosts and devices: clocks, power, heat, memory, CPU, disk, network."""
