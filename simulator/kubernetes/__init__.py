"""The fleet as a Kubernetes API would show it: objects, lists, watches."""
