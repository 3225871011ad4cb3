"""Metrics endpoint of a pod, with labels. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from collectors.discovery.types import PATH, SCHEME, DiscoveredTarget
from collectors.kubernetes.pods import ADAPTER, PodFacts

SCRAPE, PORT, METRICS_PATH, METRICS_SCHEME = (f"prometheus.io/{name}" for name in ("scrape", "port", "path", "scheme"))
_PORT_NAMES = ("metrics", "http-metrics", "http-prometheus", "http")


def wants_scrape(notes: Mapping[str, str]) -> bool:
    """True if the annotations request scraping."""
    return notes.get(SCRAPE, "").lower() == "true"


def metrics_page_of(pod: PodFacts, *, notes: Mapping[str, str] | None = None) -> DiscoveredTarget | str:
    """Metrics endpoint of a pod, or the reason in one sentence why it is unknown.

    ``notes`` are the annotations that request it: the pod's own, or those of a Service in front of it.
    """
    annotations = pod.notes if notes is None else notes
    port_text = annotations.get(PORT, "")
    named = dict(reversed(pod.ports))
    if port_text.isdigit() and 0 < int(port_text) < 65536:
        port: int | None = int(port_text)
    elif port_text:
        port = named.get(port_text)
        if port is None:
            return f"{_name(pod)} has annotation {PORT}: {port_text!r}, which is neither a port nor a port name"
    else:
        port = next((named[name] for name in _PORT_NAMES if name in named), pod.ports[0][1] if pod.ports else None)
        if port is None:
            return f"{_name(pod)} declares no port; set annotation {PORT}"
    labels = {
        **{f"__meta_kubernetes_pod_label_{_safe(name)}": value for name, value in pod.labels.items()},
        **pod.own,
        "namespace": pod.namespace,
        "pod": pod.name,
        "node": pod.node,
        "service": pod.service or pod.workload,
        "workload": pod.workload,
        "replica": pod.group,
        "group": pod.group if pod.is_grouped else "",
        SCHEME: annotations.get(METRICS_SCHEME, ""),
        PATH: annotations.get(METRICS_PATH, ""),
    }
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    adapter = annotations.get(ADAPTER) or pod.adapter
    return DiscoveredTarget(
        f"{host}:{port}", {name: value for name, value in labels.items() if value}, adapter, pod.uid
    )


@lru_cache(maxsize=4096)
def _safe(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _name(pod: PodFacts) -> str:
    return f"pod/{pod.namespace}/{pod.name}"
