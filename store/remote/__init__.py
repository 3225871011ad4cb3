"""The metric store on a Prometheus-compatible server: remote write and PromQL.

``names`` maps columns to series; ``sample_encoder`` and ``bodies`` build requests from a cycle; ``api_responses`` and
``series_decoder`` turn responses into matrices; ``write_markers`` records which timestamps count. Only ``client`` uses
the network. Must not import ``store.sql`` or ``store.state``.
"""
