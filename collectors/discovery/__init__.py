"""Target discovery: static lists, files, HTTP, DNS and the Kubernetes API as targets and topology.

Each source reports its targets and its read errors. ``manager`` keeps the last result of a failing source, so that
a discovery failure never removes targets. Nothing here scrapes, except to detect the adapter of a page
(``adapter_detection``).
"""
