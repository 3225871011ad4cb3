"""Target of a pushed source: by a rule, else by its labels. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from collectors.mapping.entity_binding import first_label
from collectors.mapping.registry import adapter
from collectors.mapping.target import Target
from collectors.receive.protocol import Source
from collectors.receive.routing import ReceiveRule
from outrider.model import EntityKind, EntityRef

NODE_LABELS = ("node", "k8s_node_name", "nodename", "host_name", "hostname")
POD_LABELS = ("pod", "k8s_pod_name")
_NAMES = {
    EntityKind.REPLICA: (*POD_LABELS, "replica", "name"),
    EntityKind.NODE: NODE_LABELS,
    EntityKind.SERVICE: ("service", "service_name"),
    EntityKind.POD: POD_LABELS,
}
NAMESPACE_LABELS = ("namespace", "k8s_namespace_name")
_WITH_NAMESPACE = {EntityKind.REPLICA, EntityKind.POD}
_FACTS = {
    "node": NODE_LABELS,
    "pod": POD_LABELS,
    "service": ("service", "service_name"),
    "gpu_type": ("gpu_type",),
    "model": ("model", "model_name"),
    "version": ("version", "service_version"),
    "role": ("role",),
}
_FIELD = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)\}")


def target_of(
    cluster: str, source: Source, adapter_name: str, about: Mapping[str, str], rule: ReceiveRule | None = None
) -> Target:
    """Target of a source; ``about`` are its labels (remote write) or resource attributes (OTLP)."""
    source_labels = {"job": source.job, "instance": source.instance, "metrics_path": source.path, **about}
    kind = adapter(adapter_name).target
    if rule is not None and rule.entity is not None:
        template = rule.entity
        namespace = filled(template.namespace, source_labels) if template.namespace else None
        if namespace is None and template.kind in _WITH_NAMESPACE:
            namespace = "default"
        entity = EntityRef(template.cluster or cluster, template.kind, namespace, filled(template.name, source_labels))
    else:
        entity = _entity(cluster, kind, source, source_labels)
    labels = {fact: value for fact, names in _FACTS.items() if (value := first_label(source_labels, names))}
    if kind is EntityKind.REPLICA:
        labels.setdefault("service", source.job)
    else:
        labels = {name: value for name, value in labels.items() if name == "node"}
    if rule is not None:
        labels |= {name: filled(text, source_labels) for name, text in rule.labels.items()}
    labels = {name: value for name, value in labels.items() if value}
    return Target(f"push/{adapter_name}/{source}", adapter_name, f"push:{source}", entity, labels)


def filled(text: str, labels: Mapping[str, str]) -> str:
    """Replaces ``{label}`` by the label's value, or by nothing if absent."""
    return _FIELD.sub(lambda match: labels.get(match[1], ""), text)


def _entity(cluster: str, kind: EntityKind, source: Source, source_labels: Mapping[str, str]) -> EntityRef:
    if kind is EntityKind.CLUSTER:
        return EntityRef(cluster, kind, None, cluster)
    name = first_label(source_labels, _NAMES.get(kind, ()))
    if not name and kind is EntityKind.SERVICE:
        name = source.job.rsplit("/", 1)[-1]
    if not name:
        name = source.instance.rsplit(":", 1)[0] if kind is EntityKind.NODE else source.instance or source.job
    namespace = (first_label(source_labels, NAMESPACE_LABELS) or "default") if kind in _WITH_NAMESPACE else None
    if kind is EntityKind.SERVICE:
        namespace = first_label(source_labels, NAMESPACE_LABELS)
    return EntityRef(cluster, kind, namespace, name)
