"""Pods of model servers: placement, start-up, crashes, rollouts, autoscaling, load balancing.

Must not import ``hardware`` or ``fleet``.
"""
