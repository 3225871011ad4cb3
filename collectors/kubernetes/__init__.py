"""The Kubernetes API: shared watches, topology, rollouts, start-ups, workload audit, Events.

Must not scrape pods or write to the API.
"""
