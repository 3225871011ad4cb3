"""A simulated fleet that serves LLMs, with fault injection, for demos, drills and tests.

It has the continuous-batching engine model, GPUs, nodes, pods and their scheduler, traffic, faults, and the exporters
that publish the pages of real systems. Only ``service`` and tests import it. The platform reads those pages and the
control endpoints; the simulator imports the kernel (``outrider``) only.
"""
