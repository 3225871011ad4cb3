"""Collection: everything between a ``/metrics`` page and a ``SampleBatch``.

Parsing and normalisation are pure. Must not judge or store values or import another stage.
"""
