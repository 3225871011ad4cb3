"""Table definitions of the metrics and the state database, column types, record codec.

Must not import another sub-package of ``store``.
"""
