"""The plan as Kubernetes and autoscaler documents. Renders only, sends nothing."""
