"""Sources of the cycle: targets, discovery, events, probes, the Kubernetes view, pushed samples."""
