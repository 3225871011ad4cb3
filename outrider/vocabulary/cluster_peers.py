"""Marks by which other programs claim nodes, pods and workloads. Pure.

The names are public API of their projects: taints and annotations of cluster-autoscaler and Karpenter, the annotations
and the label of NVSentinel's fault-quarantine, the tracking marks of Argo CD and Flux.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Marks = Mapping[str, str]

_REMOVAL_TAINTS = {
    "ToBeDeletedByClusterAutoscaler": "cluster-autoscaler",
    "karpenter.sh/disrupted": "Karpenter",
    "karpenter.sh/disruption": "Karpenter",  # before its v1 API
}
_QUARANTINE = ("quarantineHealthEventIsCordoned", "quarantineHealthEventAppliedTaints")
_CORDON_BY = "/cordon-by"  # NVSentinel's label; its prefix is configurable
_NVSENTINEL = "NVSentinel"
# Annotations against disruption, with the value that does not protect. Karpenter's is true or a duration.
_NODE_PROTECTION = {
    "karpenter.sh/do-not-disrupt": "false",
    "cluster-autoscaler.kubernetes.io/scale-down-disabled": "false",
}
_POD_PROTECTION = {"karpenter.sh/do-not-disrupt": "false", "cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
_ARGO_CD, _ARGO_CD_LABEL = "argocd.argoproj.io/tracking-id", "argocd.argoproj.io/instance"
_FLUX = {"kustomize.toolkit.fluxcd.io/name": "Flux Kustomization", "helm.toolkit.fluxcd.io/name": "Flux HelmRelease"}
# Field managers that reconcile continuously: a change of theirs would be reverted.
_RECONCILERS = ("argocd", "kustomize-controller", "helm-controller", "fleetagent", "rollouts-controller", "flagger")


def remover(taints: Iterable[str]) -> str:
    """The program that is deleting a node, by the keys of its taints; empty without one."""
    return next((_REMOVAL_TAINTS[key] for key in taints if key in _REMOVAL_TAINTS), "")


def quarantine(annotations: Marks, labels: Marks) -> str:
    """The program that keeps a node in quarantine; empty without one."""
    labeled = any(key.endswith(_CORDON_BY) and value == _NVSENTINEL for key, value in labels.items())
    return _NVSENTINEL if labeled or any(annotations.get(key) for key in _QUARANTINE) else ""


def node_protection(annotations: Marks) -> str:
    """The annotation that forbids to disrupt a node, as ``key=value``; empty without one."""
    return _protection(annotations, _NODE_PROTECTION)


def pod_protection(annotations: Marks) -> str:
    """The annotation that forbids to disrupt a pod, as ``key=value``; empty without one."""
    return _protection(annotations, _POD_PROTECTION)


def gitops_owner(annotations: Marks, labels: Marks) -> str:
    """The GitOps application that reconciles an object; empty without one."""
    application = annotations.get(_ARGO_CD, "").partition(":")[0] or labels.get(_ARGO_CD_LABEL, "")
    if application:
        return f"Argo CD application {application}"
    return next((f"{title} {labels[key]}" for key, title in _FLUX.items() if labels.get(key)), "")


def reconciler(managers: Iterable[str]) -> str:
    """The field manager that reconciles an object continuously; empty without one."""
    return next((manager for manager in managers if manager.startswith(_RECONCILERS)), "")


def _protection(annotations: Marks, allowing: Marks) -> str:
    for key, allowed in allowing.items():
        value = annotations.get(key, "")
        if value and value != allowed:
            return f"{key}={value}"
    return ""
