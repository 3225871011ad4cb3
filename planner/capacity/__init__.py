"""Replicas and GPUs needed: formula, demand, lead time, prescaling, plan, derivation."""
