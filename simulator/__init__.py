"""A simulated fleet that serves LLMs, with fault injection, for demos, drills and tests.

Engines, GPUs, nodes, pods, traffic, faults and exporters. Must not import a package other than ``outrider``.
"""
