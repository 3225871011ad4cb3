"""Back-tests over labelled recordings: the shipped configuration runs causally, pure code scores it.

Called by the command line and by ``benchmarks/``. What reads files stands in ``recordings.py``; what
scores (``events.py``, ``vus.py``, ``nab.py``) sees arrays alone and decides nothing.
"""
