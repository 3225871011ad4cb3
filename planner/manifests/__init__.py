"""The plan as Kubernetes and autoscaler documents. Renders only, sends nothing.

Must not import other packages of the planner.
"""
