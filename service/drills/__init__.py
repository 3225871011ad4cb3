"""Drills: a simulated fleet breaks on command, a platform watches it, and the truth is compared with what it saw.

Here the simulator meets the platform. The platform has its own doors only: pages or batches and
events go in, alerts and actions come out; what is really broken stays on this side. Called by the
command line, the API, scheduled game days and the benchmarks.
"""
