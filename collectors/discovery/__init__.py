"""Finding what to scrape: lists, files, HTTP, DNS and the Kubernetes API become targets and topology.

Each source says what it found and what it could not read; ``discovery`` keeps what a source last said when it
fails, because losing discovery must never look like losing the fleet. Nothing here scrapes a page, but for one
look at pages whose adapter nobody named (``guess``).
"""
