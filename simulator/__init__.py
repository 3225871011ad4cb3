"""A simulated fleet that serves LLMs, with fault injection, for demos, drills and tests.

It contains the continuous-batching engine model, GPUs, nodes, pods and their scheduler, traffic, faults, and exporters
with the exposition pages of real systems. Only ``service`` and tests import it. The platform reads the pages and the
control endpoints. Of the other packages, the simulator imports only ``outrider``.
"""
