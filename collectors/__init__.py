"""Collection: everything between a ``/metrics`` page and a ``SampleBatch``.

Sources raise on read errors; parsing is pure; normalisation is pure given the previous page. No judgment of values,
no storage, no HTTP endpoint of the service. Only ``service`` imports this package.
"""
