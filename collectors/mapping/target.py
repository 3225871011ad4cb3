"""Scrape targets: a page, the adapter that reads it, and the entity it represents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from collectors.mapping.model import EngineEndpoints
from collectors.mapping.registry import ADAPTERS, adapter
from outrider.errors import ConfigError, ConfigProblem
from outrider.model import EntityKind, EntityRef
from outrider.text import yaml_file
from outrider.topology import Edge
from outrider.wire.http_auth import Access

DEFAULT_TIMEOUT = timedelta(seconds=5)
DEFAULT_LIMIT_BYTES = 64 * 1024 * 1024
DEFAULT_LIMIT_SERIES = 100_000
_KNOWN = {
    "name", "adapter", "url", "entity", "labels", "timeout", "probe", "health_url", "load_url", "access",
    "limit_bytes", "limit_series", "identity",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """One page to fetch. ``labels`` locate the entity and become edges of the topology.

    ``timeout`` covers the whole scrape, connect to last byte. ``health_url`` and ``load_url`` default to the paths of
    the adapter, "" for none. ``health_guessed``: the adapter assumes another port than the page's, so that no
    response there means nothing. ``identity`` distinguishes successive holders of an address, if known: data of the
    former holder is not the history of the current one.
    """

    name: str
    adapter: str
    url: str
    entity: EntityRef
    labels: Mapping[str, str] = field(default_factory=dict)
    timeout: timedelta = DEFAULT_TIMEOUT
    probe: bool = False
    health_url: str = ""
    load_url: str = ""
    health_guessed: bool = False
    access: Access = field(default_factory=Access)
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    limit_series: int = DEFAULT_LIMIT_SERIES
    identity: str = ""

    def follows(self, other: Target) -> bool:
        """True if the data of ``other`` is the history of this target."""
        return self.adapter == other.adapter and self.identity == other.identity

    @property
    def watcher(self) -> EntityRef:
        """The monitoring entity of this target: several targets can represent one entity."""
        return EntityRef(self.entity.cluster, EntityKind.WORKLOAD, "targets", self.name)

    @property
    def service(self) -> EntityRef | None:
        """The service of a replica: from its label, else one with the replica's own name."""
        if self.entity.kind is not EntityKind.REPLICA:
            return None
        name = self.labels.get("service") or self.entity.name
        return EntityRef(self.entity.cluster, EntityKind.SERVICE, self.entity.namespace, name)

    @property
    def origin(self) -> str:
        """``scheme://host:port`` of a replica's page, without credentials; empty for other entities and sources."""
        if self.entity.kind is not EntityKind.REPLICA or not self.url.startswith(("http://", "https://")):
            return ""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @property
    def pod(self) -> EntityRef | None:
        """The pod named by the labels."""
        return self._labeled(EntityKind.POD, self.entity.namespace)

    @property
    def node(self) -> EntityRef | None:
        """The node named by the labels, or the entity itself."""
        return self.entity if self.entity.kind is EntityKind.NODE else self._labeled(EntityKind.NODE, None)

    def _labeled(self, kind: EntityKind, namespace: str | None) -> EntityRef | None:
        name = self.labels.get(kind.value)
        return EntityRef(self.entity.cluster, kind, namespace, name) if name else None

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Node -> pod -> replica -> service as far as labels are set; node -> replica without a pod.

        The switch and the storage that a node rests on are named by labels of the node's targets.
        """
        below = [self._labeled(kind, None) for kind in (EntityKind.SWITCH, EntityKind.STORAGE)]
        edges: list[Edge] = [(item, self.node) for item in below if item is not None and self.node is not None]
        chain = [item for item in (self.node, self.pod) if item is not None and item != self.entity]
        if self.entity.kind is not EntityKind.NODE and self.entity.kind is not EntityKind.CLUSTER:
            chain.append(self.entity)
        if self.service is not None:
            chain.append(self.service)
        edges.extend(pairwise(chain))
        return tuple(edges)

    @property
    def facts(self) -> dict[EntityRef, dict[str, str]]:
        """Labels of the entity, of its monitoring entity, and of its service (model, version)."""
        watch = {"target": self.name, "adapter": self.adapter, "stands_for": self.entity.key}
        if self.origin:
            watch["origin"] = self.origin
        if self.node is not None:
            watch["node"] = self.node.name
        facts = {self.entity: dict(self.labels), self.watcher: watch}
        if self.service is not None:
            facts[self.service] = {name: self.labels[name] for name in ("model", "gpu_type") if name in self.labels}
        return facts


def targets_of(
    cluster: str,
    documents: Iterable[Mapping[str, Any]],
    file: str = "targets",
    parsed: yaml_file.Document | None = None,
) -> tuple[Target, ...]:
    """Reads the ``targets:`` list of a configuration or of a recorded fleet.

    Raises ConfigError with every problem; names must be unique. ``parsed`` is the file with the list under its key
    ``targets``, if there is one: each problem is then reported with its line.
    """

    def problem(index: int, message: str) -> ConfigProblem:
        key = ("targets", index)
        return parsed.problem(key, message) if parsed else ConfigProblem(file, 0, f"targets.{index}", message)

    problems: list[ConfigProblem] = []
    targets: dict[str, Target] = {}
    for index, document in enumerate(documents):
        try:
            target = target_of(cluster, document)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            message = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
            problems.append(problem(index, message))
            continue
        if target.name in targets:
            problems.append(problem(index, f"duplicate target name {target.name!r}; names must be unique"))
        targets[target.name] = target
    if problems:
        raise ConfigError(f"invalid {file}: {problems[0]}", tuple(problems), hint="correct the listed targets")
    return tuple(targets.values())


def target_of(cluster: str, document: Mapping[str, Any]) -> Target:
    """Parses one target. Raises KeyError for a missing key, ValueError for a wrong one.

    Its entity belongs to ``cluster`` unless the target names another one.
    """
    if not isinstance(document, Mapping):
        raise TypeError(f"expected the keys of a target, not {document!r}")
    unknown = sorted(set(document) - _KNOWN)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; valid keys: {', '.join(sorted(_KNOWN))}")
    name, adapter_name = str(document["name"]), str(document["adapter"])
    if adapter_name not in ADAPTERS:
        raise ValueError(f"unknown adapter {adapter_name!r}; valid adapters: {', '.join(ADAPTERS)}")
    entity = document.get("entity", {"kind": adapter(adapter_name).target.value, "name": name})
    kind = EntityKind(entity["kind"])
    namespace = entity.get("namespace") or ("default" if kind in {EntityKind.REPLICA, EntityKind.POD} else None)
    entity_cluster = entity.get("cluster") or cluster
    if not isinstance(entity_cluster, str) or "/" in entity_cluster:
        raise ValueError(f"the entity's cluster {entity_cluster!r} is not a valid cluster name")
    url = str(document.get("url", ""))
    probing = adapter(adapter_name).probe or EngineEndpoints()
    timeout = document.get("timeout", DEFAULT_TIMEOUT)
    return Target(
        name=name,
        adapter=adapter_name,
        url=url,
        entity=EntityRef(entity_cluster, kind, namespace, str(entity["name"])),
        labels={str(label): str(value) for label, value in (document.get("labels") or {}).items()},
        timeout=timeout if isinstance(timeout, timedelta) else timedelta(seconds=float(timeout)),
        probe=bool(document.get("probe", adapter(adapter_name).probe is not None)),
        health_url=str(document.get("health_url") or probing.url(url, probing.health)),
        load_url=str(document.get("load_url") or probing.url(url, probing.load)),
        health_guessed=probing.port is not None and not document.get("health_url"),
        access=document.get("access") or Access(),
        limit_bytes=int(document.get("limit_bytes", DEFAULT_LIMIT_BYTES)),
        limit_series=int(document.get("limit_series", DEFAULT_LIMIT_SERIES)),
        identity=str(document.get("identity", "")),
    )
