"""Traffic of services on Kubernetes, one file a technique: weights, outlier ejection, labels that select pods.

Must not import ``remediation.decide``.
"""
