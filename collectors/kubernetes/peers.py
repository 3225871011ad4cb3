"""Other programs that manage nodes, pods and workloads, as topology labels. Pure.

The remediation leaves alone what they own (``remediation.decide.owners``).
"""

from __future__ import annotations

from collections.abc import Iterable

from collectors.kubernetes.api import Json, items, mapping, text, texts
from collectors.kubernetes.objects import MANAGERS, key_of, labels_of, owner_of
from outrider.vocabulary import cluster_peers

REMOVED_BY, QUARANTINED_BY, PROTECTED_BY = "removed_by", "quarantined_by", "protected_by"
TEMPLATE_OWNER, REPLICAS_OWNER = "template_owner", "replicas_owner"
ROLLOUT_HASH = "rollouts-pod-template-hash"  # label of the pods of an Argo Rollout


def node_owners(node: Json) -> dict[str, str]:
    """Labels of a node that another program removes, keeps in quarantine or protects."""
    meta = mapping(node.get("metadata"))
    notes = texts(meta.get("annotations"))
    taints = [text(taint.get("key")) for taint in items(mapping(node.get("spec")).get("taints"))]
    facts = {
        REMOVED_BY: cluster_peers.remover(taints) or ("its deletion" if meta.get("deletionTimestamp") else ""),
        QUARANTINED_BY: cluster_peers.quarantine(notes, labels_of(node)),
        PROTECTED_BY: cluster_peers.node_protection(notes),
    }
    return {name: value for name, value in facts.items() if value}


def template_owner(workload: Json) -> str:
    """The program that would revert a change of the pod template; empty without one."""
    notes = texts(mapping(workload.get("metadata")).get("annotations"))
    kind, name = owner_of(workload)
    written = (entry.partition("|")[0] for entry in mapping(workload.get(MANAGERS)))
    return (
        (f"{kind} {name}" if kind else "")
        or cluster_peers.gitops_owner(notes, labels_of(workload))
        or cluster_peers.reconciler(written)
    )


def replicas_owners(autoscalers: Iterable[Json]) -> dict[tuple[str, str, str], str]:
    """The autoscaler that sets the replicas of each workload, by (namespace, kind, name)."""
    owners: dict[tuple[str, str, str], str] = {}
    for autoscaler in autoscalers:
        target = mapping(mapping(autoscaler.get("spec")).get("scaleTargetRef"))
        namespace, name = key_of(autoscaler)
        kind, parent = owner_of(autoscaler)  # KEDA owns the autoscaler of its ScaledObject
        owner = f"{kind} {parent}" if kind == "ScaledObject" else f"HorizontalPodAutoscaler {name}"
        owners[namespace, text(target.get("kind")), text(target.get("name"))] = owner
    return owners
