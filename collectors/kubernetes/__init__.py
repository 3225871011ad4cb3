"""The Kubernetes API: shared watches, topology, rollouts, start-ups, workload audit, Events."""
