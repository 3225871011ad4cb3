"""Location of an entity for operators: ``node-3, GPU 5`` instead of a UUID."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.documents import serialization
from outrider.documents.summaries import word
from outrider.model import EntityKind, EntityRef, Incident
from outrider.records.drill import DrillWindow
from outrider.text.i18n import Language
from outrider.topology import Topology
from service.engine import drill_marking

_FEW = 2


def place(topology: Topology, entity: EntityRef, language: Language) -> str:
    """Node (at most two) and GPU index; empty if the topology does not contain the entity."""
    parts = []
    if entity.kind is not EntityKind.NODE:
        nodes = [node.name for node in topology.below(entity, EntityKind.NODE)]
        parts = nodes[:_FEW] + ([f"+{len(nodes) - _FEW}"] if len(nodes) > _FEW else [])
    index = topology.label(entity, "gpu")
    if entity.kind is EntityKind.GPU and index:
        parts.append(f"{word('entity_kind', EntityKind.GPU, language)} {index}")
    return ", ".join(parts)


def _of_incident(topology: Topology, entity: EntityRef, incident: Incident, language: Language) -> str:
    """Location of an entity that left the topology with the fault: the only node among the alternatives."""
    known = place(topology, entity, language)
    if known or entity in topology.entities:
        return known
    nodes = {rejected.entity.name for rejected in incident.rejected if rejected.entity.kind is EntityKind.NODE}
    return nodes.pop() if len(nodes) == 1 else ""


def with_place(story: dict[str, Any], incident: Incident, topology: Topology, language: Language) -> dict[str, Any]:
    """JSON of the incident with ``place`` next to the entity of every hypothesis."""
    rows = [
        {**row, "place": _of_incident(topology, hypothesis.entity, incident, language)}
        for row, hypothesis in zip(story["hypotheses"], incident.hypotheses, strict=True)
    ]
    return {**story, "hypotheses": rows, "suspected_cause": rows[0] if rows else None}


def incident_json(
    incident: Incident, topology: Topology, language: Language, drills: Sequence[DrillWindow]
) -> dict[str, Any]:
    """JSON of an incident for lists: locations, supporting evidence of its cause, and its drill."""
    story = with_place(serialization.incident(incident, language), incident, topology, language)
    cause = incident.suspected_cause
    story["evidence"] = [serialization.evidence(item, language) for item in cause.evidence] if cause else []
    story["drill"] = drill_marking.name_of(incident, drills)
    return story
