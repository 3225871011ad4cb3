"""Pods of model servers: placement, start, crash, rollout, autoscaling, load balancing."""
