"""Scrape targets of a Prometheus: adapter of each job, target of each instance, reason of each failure."""

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
    """Adapter of each (job, metrics path) that has an exporter's signature metric, by one query.

    ``span`` covers any time in (at - span, at]; None the current time. Raises CollectError.
    """
    marks = f'{{__name__=~"{"|".join(SIGNATURES.values())}"}}'
    # last_over_time keeps metric names on every server
    selector = marks if span is None else f"last_over_time({marks}[{int(span.total_seconds() * 1000)}ms])"
    result = await api.vector(f"count by (__name__, job, metrics_path) ({selector})", at)
    return first_marked(result)


def first_marked(answer: Iterable[Mapping[str, str]]) -> dict[tuple[str, str], str]:
    """Adapter of each page by job and path: the first in the order of ``SIGNATURES`` whose metric it has."""
    marks_by_job: dict[tuple[str, str], set[str]] = {}
    for labels in answer:
        job_path = labels.get("job", ""), labels.get("metrics_path", "")
        marks_by_job.setdefault(job_path, set()).add(labels.get("__name__", ""))
    return {
        job_path: next(name for name, mark in SIGNATURES.items() if mark in marks)
        for job_path, marks in marks_by_job.items()
        if marks & set(SIGNATURES.values())
    }


async def metric_names_of_jobs(
    api: PrometheusApi, jobs: Iterable[str], at: datetime
) -> dict[Key, frozenset[str]] | None:
    """All metric names of the targets of jobs; None if the server rejects such a broad query."""
    job_pattern = "|".join(sorted(literal(job) for job in jobs))
    try:
        query = f'count by (__name__, job, instance, metrics_path) ({{job=~"{job_pattern}"}})'
        result = await api.vector(query, at) if job_pattern else []
    except CollectError:
        return None
    names_by_key: dict[Key, set[str]] = {}
    for labels in result:
        name = labels.get("__name__", "")
        if name != "up" and not name.startswith("scrape_"):  # added by the server
            names_by_key.setdefault(key_of(labels), set()).add(name)
    return {key: frozenset(names) for key, names in names_by_key.items()}


def target_of_instance(cluster: str, adapter_name: str, key: Key, labels: Mapping[str, str]) -> Target:
    """Target of an instance of a job, with name and location from the labels of its ``up``."""
    job, instance, path = key
    kind = adapter(adapter_name).target
    name = next((labels[label] for label in _NAMES.get(kind.value, ()) if labels.get(label)), "")
    if kind is EntityKind.CLUSTER:
        entity = EntityRef(cluster, kind, None, cluster)
    else:
        host = instance.rsplit(":", 1)[0] if kind is EntityKind.NODE else instance
        namespace = labels.get("namespace", "default") if kind in _NAMESPACED else None
        entity = EntityRef(cluster, kind, namespace, name or host)
    facts = ("node", "pod", "service", "gpu_type", "model", "version", "role")
    known = {label: labels[label] for label in facts if labels.get(label)}
    if kind is EntityKind.REPLICA:
        known.setdefault("service", job)
    else:
        known = {label: value for label, value in known.items() if label == "node"}
    suffix = f"{path}" if path not in {"", "/metrics"} else ""
    return Target(f"{job}/{instance}{suffix}", adapter_name, f"prometheus:{job}/{instance}{suffix}", entity, known)


def scrape_error(target: Target, message: str) -> CollectError:
    """Maps the server's error text of a failed scrape to a CollectError."""
    reason = next((reason for words, reason in _REASONS if words in message), CollectReason.OTHER)
    return CollectError(
        f"{target.name}: Prometheus cannot scrape it" + (f": {message}" if message else ""),
        reason=reason,
        hint="check the target's page in Prometheus",
    )
