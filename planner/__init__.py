"""How many GPUs, and when: forecasts, calibration, the capacity formula and the plan.

Everything here is pure: history, calibrations, the fleet and the instant come in, a ``Plan`` goes
out. No clock, database, network or file is read. Called by ``service`` at the planner's cadence and
by the command line for back-tests and for the formula alone.
"""
