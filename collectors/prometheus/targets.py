"""What a Prometheus scrapes, as targets of ours: which adapter reads a job, what an instance is, why it failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from collectors.mapping.registry import adapter
from collectors.mapping.signatures import SIGNATURES
from collectors.mapping.target import Target
from collectors.prometheus.client import PrometheusApi
from collectors.prometheus.pages import Key, key_of
from collectors.prometheus.query_builder import literal
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef

_NAMES = {
    "replica": ("pod", "replica", "name"),
    "node": ("node", "nodename", "hostname"),
    "service": ("service", "name"),
}
_NAMESPACED = {EntityKind.REPLICA, EntityKind.SERVICE, EntityKind.POD, EntityKind.CONTAINER, EntityKind.WORKLOAD}
_REASONS = (
    ("connection refused", CollectReason.REFUSED),
    ("deadline exceeded", CollectReason.TIMEOUT),
    ("no such host", CollectReason.DNS),
    ("x509", CollectReason.TLS),
    ("tls", CollectReason.TLS),
    ("HTTP status", CollectReason.HTTP_STATUS),
    ("connection reset", CollectReason.RESET),
)


async def detect_adapters(
    api: PrometheusApi, at: datetime, span: timedelta | None = None
) -> dict[tuple[str, str], str]:
    """The adapter of each (job, metrics path) that has the metric which marks an exporter, by one query.

    ``span`` looks for what there was at any time in (at - span, at]; None for what there is. Raises CollectError.
    """
    marks = f'{{__name__=~"{"|".join(SIGNATURES.values())}"}}'
    # last_over_time is the one that keeps metric names on every server
    seen = marks if span is None else f"last_over_time({marks}[{int(span.total_seconds() * 1000)}ms])"
    answer = await api.vector(f"count by (__name__, job, metrics_path) ({seen})", at)
    return first_marked(answer)


def first_marked(answer: Iterable[Mapping[str, str]]) -> dict[tuple[str, str], str]:
    """Where a page bears several marks, the one that stands first in ``SIGNATURES`` says whose it is."""
    found: dict[tuple[str, str], set[str]] = {}
    for labels in answer:
        place = labels.get("job", ""), labels.get("metrics_path", "")
        found.setdefault(place, set()).add(labels.get("__name__", ""))
    return {
        place: next(name for name, mark in SIGNATURES.items() if mark in marks)
        for place, marks in found.items()
        if marks & set(SIGNATURES.values())
    }


async def metric_names_of_jobs(
    api: PrometheusApi, jobs: Iterable[str], at: datetime
) -> dict[Key, frozenset[str]] | None:
    """Every metric name that the targets of jobs expose; None where the server refuses so wide a question."""
    wanted = "|".join(sorted(literal(job) for job in jobs))
    try:
        query = f'count by (__name__, job, instance, metrics_path) ({{job=~"{wanted}"}})'
        answer = await api.vector(query, at) if wanted else []
    except CollectError:
        return None
    found: dict[Key, set[str]] = {}
    for labels in answer:
        name = labels.get("__name__", "")
        if name != "up" and not name.startswith("scrape_"):  # the server's own
            found.setdefault(key_of(labels), set()).add(name)
    return {key: frozenset(names) for key, names in found.items()}


def target_of_instance(cluster: str, adapter_name: str, key: Key, labels: Mapping[str, str]) -> Target:
    """The target that an instance of a job is, named and placed by the labels of its ``up``."""
    job, instance, path = key
    kind = adapter(adapter_name).target
    name = next((labels[one] for one in _NAMES.get(kind.value, ()) if labels.get(one)), "")
    if kind is EntityKind.CLUSTER:
        entity = EntityRef(cluster, kind, None, cluster)
    else:
        host = instance.rsplit(":", 1)[0] if kind is EntityKind.NODE else instance
        namespace = labels.get("namespace", "default") if kind in _NAMESPACED else None
        entity = EntityRef(cluster, kind, namespace, name or host)
    facts = ("node", "pod", "service", "gpu_type", "model", "version", "role")
    known = {one: labels[one] for one in facts if labels.get(one)}
    if kind is EntityKind.REPLICA:
        known.setdefault("service", job)
    else:
        known = {one: value for one, value in known.items() if one == "node"}
    suffix = f"{path}" if path not in {"", "/metrics"} else ""
    return Target(f"{job}/{instance}{suffix}", adapter_name, f"prometheus:{job}/{instance}{suffix}", entity, known)


def scrape_error(target: Target, said: str) -> CollectError:
    """The reason of a failed scrape in our words, from what the server said of it."""
    reason = next((reason for words, reason in _REASONS if words in said), CollectReason.OTHER)
    return CollectError(
        f"{target.name}: Prometheus cannot scrape it" + (f": {said}" if said else ""),
        reason=reason,
        hint="look at the target's page in Prometheus",
    )
