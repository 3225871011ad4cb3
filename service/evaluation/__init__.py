"""Back-tests over labelled recordings: the shipped configuration runs causally, pure code scores it.

Used by the command line and ``benchmarks/``. ``recordings.py`` reads files; the scores (``events.py``, ``vus.py``,
``nab.py``) work on arrays only.
"""
