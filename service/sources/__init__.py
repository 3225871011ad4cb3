"""Sources of the cycle: targets, discovery, events, probes, the Kubernetes view, pushed samples.

Must not import ``service.incidents``, ``service.scaling`` or a package above them.
"""
