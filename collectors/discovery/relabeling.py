"""Relabeling: which discovered targets are kept, their adapter and their entity. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from collectors.discovery.types import ADDRESS, PATH, SCHEME, DiscoveredTarget
from collectors.mapping.registry import ADAPTERS, adapter
from collectors.mapping.target import DEFAULT_LIMIT_BYTES, DEFAULT_LIMIT_SERIES, DEFAULT_TIMEOUT, Target, target_of
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind
from outrider.vocabulary.request_class import RequestClass
from outrider.wire.cardinality import OTHER
from outrider.wire.http_auth import Access

# Labels that a target keeps: the topology is built from them. All other labels serve relabeling only.
KEPT = (
    "node", "pod", "service", "gpu_type", "model", "version", "workload", "switch", "storage", "replica", "group",
    "tensor_parallel", "pipeline_parallel", "request_class", "tenant", "role",
)  # fmt: skip
_NAMES = {
    EntityKind.REPLICA: ("replica", "pod"),
    EntityKind.NODE: ("node", "nodename", "hostname"),
    EntityKind.SERVICE: ("service",),
    EntityKind.POD: ("pod",),
    EntityKind.GPU: ("gpu",),
}
_ADDRESS = re.compile(ADDRESS)
_UNSAFE = re.compile(r"[^A-Za-z0-9._:\[\]-]")
_PLAIN_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class RelabelRules:
    """Rules that turn discovered targets into scrape targets.

    ``keep`` and ``drop`` are regular expressions for whole values by label; an absent label is "". ``labels`` maps
    our label (key) to the source's label (value). ``adapters`` maps values of the label ``adapter_label`` to
    adapters; ``adapter`` applies to all others, None detects it from the page.
    """

    keep: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    drop: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    adapter: str | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)
    adapter_label: str = "job"
    scheme: str = "http"
    path: str = "/metrics"
    port: int | None = None
    timeout: timedelta = DEFAULT_TIMEOUT
    access: Access = field(default_factory=Access)
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    limit_series: int = DEFAULT_LIMIT_SERIES

    def wants(self, discovered: DiscoveredTarget) -> bool:
        """True if every ``keep`` matches and no ``drop`` does."""
        labels = {"__address__": discovered.address, **discovered.labels}
        return all(pattern.fullmatch(labels.get(name, "")) for name, pattern in self.keep.items()) and not any(
            pattern.fullmatch(labels.get(name, "")) for name, pattern in self.drop.items()
        )

    def adapter_of(self, discovered: DiscoveredTarget) -> str | None:
        """The configured adapter of a page, if any."""
        named = discovered.adapter or discovered.labels.get("adapter") or discovered.labels.get("outrider_adapter")
        return named or self.adapters.get(discovered.labels.get(self.adapter_label, "")) or self.adapter


def url_of(discovered: DiscoveredTarget, rules: RelabelRules) -> str:
    """URL of the page. Raises CollectError if the port is unknown."""
    scheme = discovered.labels.get(SCHEME) or rules.scheme
    path = discovered.labels.get(PATH) or rules.path
    match = _ADDRESS.fullmatch(discovered.address)
    if match is None or scheme not in _PLAIN_PORTS:
        raise CollectError(f"{scheme}://{discovered.address} is not a valid address", reason=CollectReason.OTHER)
    port = match["port"] or rules.port
    address = match["host"] if port is None else f"{match['host']}:{port}"
    return f"{scheme}://{address}/{path.lstrip('/')}"


def target_of_discovered(
    source: str, cluster: str, discovered: DiscoveredTarget, rules: RelabelRules, adapter_name: str
) -> Target:
    """The target of a page. Raises CollectError that names an invalid one."""
    url = url_of(discovered, rules)
    if adapter_name not in ADAPTERS:
        message = f"{source}: {url} names the unknown adapter {adapter_name!r}"
        raise CollectError(message, reason=CollectReason.OTHER, hint=f"valid adapters: {', '.join(ADAPTERS)}")
    labels = {name: discovered.labels[name] for name in KEPT if discovered.labels.get(name)}
    labels.update(
        (ours, discovered.labels[theirs]) for ours, theirs in rules.labels.items() if discovered.labels.get(theirs)
    )
    if "request_class" in labels:  # free text at its source, at most a few dozen classes here
        labels["request_class"] = str(RequestClass.parse(labels["request_class"])) or OTHER
    kind = adapter(adapter_name).target
    host = discovered.address.rsplit(":", 1)[0]
    fallback = discovered.address if kind in (EntityKind.REPLICA, EntityKind.POD) else host
    name = next((labels[label] for label in _NAMES.get(kind, ()) if labels.get(label)), fallback)
    if kind is EntityKind.CLUSTER:
        name = cluster
    elif kind is EntityKind.REPLICA:
        labels.setdefault("service", discovered.labels.get("job") or source)
    elif kind is EntityKind.NODE:
        labels.setdefault("node", name)
    document = {
        "name": name_of(source, url),
        "adapter": adapter_name,
        "url": url,
        "entity": {"kind": kind.value, "name": name, "namespace": _namespace(kind, discovered)},
        "labels": labels,
        "timeout": rules.timeout,
        "access": rules.access,
        "limit_bytes": rules.limit_bytes,
        "limit_series": rules.limit_series,
        "identity": discovered.identity or "/".join(labels.get(label, "") for label in ("pod", "replica", "model")),
    }
    try:
        return target_of(cluster, document)
    except (KeyError, ValueError, TypeError) as error:
        raise CollectError(f"{source}: {url} is not a valid target: {error}", reason=CollectReason.OTHER) from error


def name_of(source: str, url: str) -> str:
    """``SOURCE-HOST:PORT``, with the path unless it is /metrics: a name that is valid as a file name of a recording."""
    address, path = url.split("://", 1)[1].split("/", 1)
    location = address if path == "metrics" else f"{address}/{path}"
    return f"{_UNSAFE.sub('_', source)}-{_UNSAFE.sub('_', location)}"


def _namespace(kind: EntityKind, discovered: DiscoveredTarget) -> str | None:
    spaced = kind in (EntityKind.REPLICA, EntityKind.POD, EntityKind.SERVICE, EntityKind.WORKLOAD)
    return discovered.labels.get("namespace") if spaced else None
