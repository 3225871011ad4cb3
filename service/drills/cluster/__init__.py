"""Drills on a real Kubernetes namespace: consent, bounded injections, restoration. Never decides remediation."""
