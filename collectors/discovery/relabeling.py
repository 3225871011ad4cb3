"""What was found as targets: which of it is kept, which adapter reads it, what it stands for. Pure."""

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

# Labels that a target keeps: the topology is made of them. Whatever else a source says is for relabelling only.
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
    """How what a source found becomes targets.

    ``keep`` and ``drop`` are regular expressions for whole values by label, an absent label is "". ``labels``
    says which of the source's labels (value) is ours (key). ``adapters`` maps values of the label
    ``adapter_label`` to adapters; ``adapter`` is for all others, None to guess from the page.
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

    def wants(self, found: DiscoveredTarget) -> bool:
        """True when every ``keep`` holds and no ``drop`` does."""
        labels = {"__address__": found.address, **found.labels}
        return all(pattern.fullmatch(labels.get(name, "")) for name, pattern in self.keep.items()) and not any(
            pattern.fullmatch(labels.get(name, "")) for name, pattern in self.drop.items()
        )

    def adapter_of(self, found: DiscoveredTarget) -> str | None:
        """Who reads this page, as far as somebody said so."""
        named = found.adapter or found.labels.get("adapter") or found.labels.get("outrider_adapter")
        return named or self.adapters.get(found.labels.get(self.adapter_label, "")) or self.adapter


def url_of(found: DiscoveredTarget, rules: RelabelRules) -> str:
    """Where the page is. Raises CollectError when the port is not known."""
    scheme = found.labels.get(SCHEME) or rules.scheme
    path = found.labels.get(PATH) or rules.path
    match = _ADDRESS.fullmatch(found.address)
    if match is None or scheme not in _PLAIN_PORTS:
        raise CollectError(f"{scheme}://{found.address} is no address of a page", reason=CollectReason.OTHER)
    port = match["port"] or rules.port
    where = match["host"] if port is None else f"{match['host']}:{port}"
    return f"{scheme}://{where}/{path.lstrip('/')}"


def target_of_discovered(
    source: str, cluster: str, found: DiscoveredTarget, rules: RelabelRules, adapter_name: str
) -> Target:
    """The target of a page. Raises CollectError that names it when it cannot be one."""
    url = url_of(found, rules)
    if adapter_name not in ADAPTERS:
        said = f"{source}: {url} names an adapter {adapter_name!r} that there is not"
        raise CollectError(said, reason=CollectReason.OTHER, hint=f"known are {', '.join(ADAPTERS)}")
    labels = {name: found.labels[name] for name in KEPT if found.labels.get(name)}
    labels.update((ours, found.labels[theirs]) for ours, theirs in rules.labels.items() if found.labels.get(theirs))
    if "request_class" in labels:  # free text at its source, a few dozen classes here
        labels["request_class"] = str(RequestClass.parse(labels["request_class"])) or OTHER
    kind = adapter(adapter_name).target
    host = found.address.rsplit(":", 1)[0]
    wanted = found.address if kind in (EntityKind.REPLICA, EntityKind.POD) else host
    name = next((labels[one] for one in _NAMES.get(kind, ()) if labels.get(one)), wanted)
    if kind is EntityKind.CLUSTER:
        name = cluster
    elif kind is EntityKind.REPLICA:
        labels.setdefault("service", found.labels.get("job") or source)
    elif kind is EntityKind.NODE:
        labels.setdefault("node", name)
    document = {
        "name": name_of(source, url),
        "adapter": adapter_name,
        "url": url,
        "entity": {"kind": kind.value, "name": name, "namespace": _namespace(kind, found)},
        "labels": labels,
        "timeout": rules.timeout,
        "access": rules.access,
        "limit_bytes": rules.limit_bytes,
        "limit_series": rules.limit_series,
        "identity": found.identity or "/".join(labels.get(one, "") for one in ("pod", "replica", "model")),
    }
    try:
        return target_of(cluster, document)
    except (KeyError, ValueError, TypeError) as error:
        raise CollectError(f"{source}: {url} cannot be a target: {error}", reason=CollectReason.OTHER) from error


def name_of(source: str, url: str) -> str:
    """``SOURCE-HOST:PORT``, with the path where it is not /metrics: a name that recordings can give to a file."""
    address, path = url.split("://", 1)[1].split("/", 1)
    where = address if path == "metrics" else f"{address}/{path}"
    return f"{_UNSAFE.sub('_', source)}-{_UNSAFE.sub('_', where)}"


def _namespace(kind: EntityKind, found: DiscoveredTarget) -> str | None:
    spaced = kind in (EntityKind.REPLICA, EntityKind.POD, EntityKind.SERVICE, EntityKind.WORKLOAD)
    return found.labels.get("namespace") if spaced else None
