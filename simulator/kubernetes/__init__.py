"""Kubernetes API view of the fleet: objects, lists, watches."""
