"""Acts on nodes, pods and workloads of a Kubernetes cluster. Never decides; must not import ``decide``."""
