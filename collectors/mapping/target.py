"""What is scraped: a page, the adapter that reads it, and the component it stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

from collectors.mapping.model import Probing
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
    """One page to fetch. ``labels`` say where the component sits and become edges of the topology.

    ``timeout`` is for the whole scrape, connect to last byte. ``health_url`` and ``load_url`` default to
    the paths that the adapter names, "" for none; ``health_guessed`` when the adapter guesses another
    port than the page's, so that nobody there is no bad news. ``identity`` tells one
    holder of the address from the next, where somebody knows: what was seen of the former is no past of the latter.
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
        """True when what was seen of ``other`` is the past of this one."""
        return self.adapter == other.adapter and self.identity == other.identity

    @property
    def watcher(self) -> EntityRef:
        """The monitoring entity of this target: several targets can stand for one component."""
        return EntityRef(self.entity.cluster, EntityKind.WORKLOAD, "targets", self.name)

    @property
    def service(self) -> EntityRef | None:
        """The service a replica belongs to: its label, else one of the replica's own name."""
        if self.entity.kind is not EntityKind.REPLICA:
            return None
        name = self.labels.get("service") or self.entity.name
        return EntityRef(self.entity.cluster, EntityKind.SERVICE, self.entity.namespace, name)

    @property
    def pod(self) -> EntityRef | None:
        """The pod that the labels name."""
        return self._labelled(EntityKind.POD, self.entity.namespace)

    @property
    def node(self) -> EntityRef | None:
        """The node that the labels name, or the entity itself."""
        return self.entity if self.entity.kind is EntityKind.NODE else self._labelled(EntityKind.NODE, None)

    def _labelled(self, kind: EntityKind, namespace: str | None) -> EntityRef | None:
        name = self.labels.get(kind.value)
        return EntityRef(self.entity.cluster, kind, namespace, name) if name else None

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Node -> pod -> replica -> service, as far as the labels tell; node -> replica without a pod.

        What a node rests on itself, a switch and a storage, is named by labels of the node's targets.
        """
        below = [self._labelled(kind, None) for kind in (EntityKind.SWITCH, EntityKind.STORAGE)]
        found: list[Edge] = [(one, self.node) for one in below if one is not None and self.node is not None]
        chain = [one for one in (self.node, self.pod) if one is not None and one != self.entity]
        if self.entity.kind is not EntityKind.NODE and self.entity.kind is not EntityKind.CLUSTER:
            chain.append(self.entity)
        if self.service is not None:
            chain.append(self.service)
        found.extend(pairwise(chain))
        return tuple(found)

    @property
    def facts(self) -> dict[EntityRef, dict[str, str]]:
        """Labels of the entity, of its monitoring entity, and of its service (model, version)."""
        watch = {"target": self.name, "adapter": self.adapter, "stands_for": self.entity.key}
        if self.node is not None:
            watch["node"] = self.node.name
        found = {self.entity: dict(self.labels), self.watcher: watch}
        if self.service is not None:
            found[self.service] = {name: self.labels[name] for name in ("model", "gpu_type") if name in self.labels}
        return found


def targets_of(
    cluster: str,
    documents: Iterable[Mapping[str, Any]],
    file: str = "targets",
    parsed: yaml_file.Document | None = None,
) -> tuple[Target, ...]:
    """Read the ``targets:`` list of a configuration or of a recorded fleet.

    Raises ConfigError that lists every fault; a name may stand once only. ``parsed`` is the file with the list as its
    key ``targets``, where there is one: each fault is told with its line.
    """

    def problem(index: int, said: str) -> ConfigProblem:
        key = ("targets", index)
        return parsed.problem(key, said) if parsed else ConfigProblem(file, 0, f"targets.{index}", said)

    problems: list[ConfigProblem] = []
    found: dict[str, Target] = {}
    for index, document in enumerate(documents):
        try:
            target = target_of(cluster, document)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            what = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
            problems.append(problem(index, what))
            continue
        if target.name in found:
            problems.append(problem(index, f"a second target named {target.name!r}; each needs a name of its own"))
        found[target.name] = target
    if problems:
        raise ConfigError(f"{file} cannot be used: {problems[0]}", tuple(problems), hint="correct the targets named")
    return tuple(found.values())


def target_of(cluster: str, document: Mapping[str, Any]) -> Target:
    """One target from its configuration. Raises KeyError for a missing key, ValueError for a wrong one.

    Its entity is of ``cluster`` unless it names another one itself.
    """
    if not isinstance(document, Mapping):
        raise TypeError(f"expected the keys of a target, not {document!r}")
    unknown = sorted(set(document) - _KNOWN)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; known are {', '.join(sorted(_KNOWN))}")
    name, adapter_name = str(document["name"]), str(document["adapter"])
    if adapter_name not in ADAPTERS:
        raise ValueError(f"no adapter {adapter_name!r}; known are {', '.join(ADAPTERS)}")
    entity = document.get("entity", {"kind": adapter(adapter_name).target.value, "name": name})
    kind = EntityKind(entity["kind"])
    namespace = entity.get("namespace") or ("default" if kind in {EntityKind.REPLICA, EntityKind.POD} else None)
    home = entity.get("cluster") or cluster
    if not isinstance(home, str) or "/" in home:
        raise ValueError(f"the entity's cluster {home!r} is not the name of a cluster")
    url = str(document.get("url", ""))
    probing = adapter(adapter_name).probe or Probing()
    timeout = document.get("timeout", DEFAULT_TIMEOUT)
    return Target(
        name=name,
        adapter=adapter_name,
        url=url,
        entity=EntityRef(home, kind, namespace, str(entity["name"])),
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
