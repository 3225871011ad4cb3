"""The integrator: the only package that joins the stages.

Contains settings, cycle, dispatchers, jobs, API and command line. Must not decide: the stages' pure functions do.
"""

# ``engine/cycle.py`` calls them in their order.
