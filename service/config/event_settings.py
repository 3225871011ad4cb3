"""The part of the configuration that names sources of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field

from outrider.errors import ConfigProblem
from outrider.text import yaml_file
from service.config.access_settings import AccessSettings
from service.config.settings_base import Duration


class EventSettings(AccessSettings):
    """A place where events are read: kernel logs, the Kubernetes API, logs of model servers."""

    type: Literal["kernel_log", "kubernetes", "engine_log", "loki"] = Field(
        description="kernel_log: XIDs, OOM kills, links; kubernetes: Events, rollouts, changed flags, scaling, "
        "topology, start-ups; engine_log and loki: CUDA out of memory, NCCL timeouts, missing weights"
    )
    name: str | None = Field(None, description="unique name of the source; its type when not given")
    url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="API server, such as https://kubernetes.default.svc; for kernel_log the agent of a node, "
        "with `{node}` for the name of each node, or with `node` for one",
    )
    path: Path | None = Field(
        None,
        description="kernel_log of this machine: /dev/kmsg, a pipe, or a file that `journalctl -k -f -o json` writes",
    )
    node: str | None = Field(None, description="kernel_log: name of the node that path or url stands for")
    namespaces: list[str] = Field([], description="only these Kubernetes namespaces; all when empty")
    service_label: str = Field(
        "app.kubernetes.io/name", description="kubernetes: label of a workload that names the service it runs"
    )
    label_selector: str = Field(
        "", description="engine_log: pods to read; those that ask for an accelerator when empty"
    )
    container: str = Field("", description="engine_log: container to read; the one with the accelerator when empty")
    query: str = Field(
        "", description='loki: LogQL log query, such as {namespace="serving", container="vllm"}; a tenant is a header'
    )
    prefilter: bool = Field(True, description="loki: let Loki drop the lines that no pattern is about")
    signals: Literal["auto", "always", "never"] = Field(
        "auto",
        description="kubernetes: signals of nodes, pods and workloads from the API; auto: only without a target "
        "that reads the cluster's kube-state-metrics",
    )
    cluster: str | None = Field(None, description="when it is not the cluster above", pattern=r"^[^/]+$")
    every: Duration = Field(
        timedelta(0), description="least time between two readings; 0s reads at every cycle. Many pods: 1m"
    )
    timeout: Duration = Field(timedelta(seconds=5), description="whole time an answer may take")


def events_usable(events: Sequence[EventSettings], document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Each source has its own name, and the one address its type needs."""
    seen: set[str] = set()
    for index, one in enumerate(events):
        place, name = ("events", index), one.name or one.type
        if name in seen:
            yield document.problem((*place, "name"), f"a second source of events is named {name!r}")
        seen.add(name)
        if one.type != "kernel_log":
            if one.url is None:
                yield document.problem((*place, "url"), f"is needed by a source of type {one.type}")
            if one.path is not None:
                yield document.problem((*place, "path"), "is for sources of type kernel_log")
            if one.type == "loki" and not one.query.strip().startswith("{"):
                said = 'is needed by a source of type loki; expected a LogQL selector such as {namespace="serving"}'
                yield document.problem((*place, "query"), said)
        elif (one.url is None) == (one.path is None):
            yield document.problem(place, "expected either url or path")
        elif one.node is None and (one.path is not None or "{node}" not in (one.url or "")):
            yield document.problem(place, "expected node: the name of the node whose log this is")
