"""Target discovery: static lists, files, HTTP, DNS and the Kubernetes API as targets and topology.

Must not scrape, except to detect the adapter of a page. A failing source never removes targets.
"""
