"""Entities: the subjects of signals, findings and actions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from outrider.wire.sanitize import MOST_NAME_BYTES, fitted, is_storable


class EntityKind(StrEnum):
    """Kinds of entities. ``device`` of ``catalog.yaml`` is GPU, ``engine_instance`` REPLICA."""

    CLUSTER = "cluster"
    POOL = "pool"
    NODE = "node"
    SWITCH = "switch"
    STORAGE = "storage"
    GPU = "gpu"
    PORT = "port"
    POD = "pod"
    CONTAINER = "container"
    REPLICA = "replica"
    WORKLOAD = "workload"
    SERVICE = "service"
    TENANT = "tenant"  # of one service, named "<service>/<tenant>"


@dataclass(frozen=True, slots=True)
class EntityRef:
    """One component. A replica is one TP x PP group with one scheduler.

    Names are external input: unstorable characters are replaced and long names truncated (``outrider.wire.sanitize``),
    so that one bad label affects only its own entity.
    """

    cluster: str
    kind: EntityKind
    namespace: str | None
    name: str

    def __post_init__(self) -> None:
        """Checks ordinary names only, for speed."""
        if not is_storable(f"{self.cluster}{self.namespace}{self.name}"):
            object.__setattr__(self, "name", fitted(self.name, MOST_NAME_BYTES))
            object.__setattr__(self, "cluster", fitted(self.cluster, MOST_NAME_BYTES // 2))
            if self.namespace:
                object.__setattr__(self, "namespace", fitted(self.namespace, MOST_NAME_BYTES // 2))

    def __str__(self) -> str:
        """``kind/name``, with the namespace in between if there is one."""
        return "/".join(part for part in (self.kind.value, self.namespace, self.name) if part)

    @property
    def key(self) -> str:
        """Key in databases and dictionaries: cluster/kind/namespace/name."""
        return f"{self.cluster}/{self.kind.value}/{self.namespace or ''}/{self.name}"

    @staticmethod
    def from_key(key: str) -> EntityRef:
        """Parses a ``key``. Raises ValueError if a part is missing."""
        cluster, kind, namespace, name = key.split("/", 3)
        return EntityRef(cluster, EntityKind(kind), namespace or None, name)
