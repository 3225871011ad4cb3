"""Traffic of services on Kubernetes: weights of routes, outlier ejection, labels that select pods; one file a technique.

Must not import ``remediation.decide``.
"""
