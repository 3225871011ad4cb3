"""Replicas of Kubernetes objects, computed from scratch."""

from __future__ import annotations

from collectors.kubernetes.objects import NODES, PODS, Objects
from collectors.kubernetes.pods import SERVICE_LABEL
from collectors.kubernetes.replicas import PodIndex, Replicas, fronts_of


def replicas_of(objects: Objects, service_label: str = SERVICE_LABEL) -> Replicas:
    """Facts of every pod and the replicas."""
    index = PodIndex(service_label)
    for pod in objects.all(PODS):
        index.take(pod)
    return index.replicas(objects.all(NODES), fronts_of(objects))
