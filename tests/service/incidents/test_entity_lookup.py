"""Entities by the names that people use."""

from __future__ import annotations

import pytest

from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology
from service.incidents.remediation_preview import entity_named

CHAT, OTHER = (EntityRef("c", EntityKind.SERVICE, namespace, "chat") for namespace in ("llm", "lab"))
NODE = EntityRef("c", EntityKind.NODE, None, "node-1")
TOPOLOGY = Topology.build([], [CHAT, OTHER, NODE])


@pytest.mark.parametrize("text", [CHAT.key, "llm/chat"])
def test_a_service_is_named_by_its_key_or_namespace(text: str) -> None:
    assert entity_named(TOPOLOGY, text, EntityKind.SERVICE) == CHAT


def test_a_name_of_several_entities_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'chat' names 2 entities: .*lab.*, .*llm.*"):
        entity_named(TOPOLOGY, "chat", EntityKind.SERVICE)
    assert entity_named(TOPOLOGY, "node-1", EntityKind.NODE) == NODE
