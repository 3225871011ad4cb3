"""A fleet that serves LLMs and breaks on command: the world that demos, drills and tests run in.

Here live the continuous-batching engine model, GPUs, nodes, pods and their scheduler, traffic,
fault injection, and the exporters that turn all of it into the pages real systems publish. Only
``service`` and tests call it. The platform never reads anything here but those pages and the
control door; it imports the kernel and nothing else of ours.
"""
