"""The integrator: the only package that joins the stages.

Here live the settings, the cycle, the dispatchers, the jobs, the API and the command line. Decisions
are not taken here: they are pure functions of the stages, called in the order of ``cycle.py``.
"""
