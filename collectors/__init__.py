"""Fetch (dumb, raises), parse (pure), normalise (pure given what the last scrape said).

What lives here: everything between a ``/metrics`` page and a ``SampleBatch``: the scraper, the
exposition parser, the adapters (YAML, one file an engine or exporter), the engine probe, reading an
existing Prometheus, and reading recordings. What must not: judgement of values, storage, the HTTP
door of the service. Who calls it: ``service`` only.
"""
