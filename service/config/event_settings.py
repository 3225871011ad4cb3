"""Event sources."""

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
    """An event source: kernel logs, the Kubernetes API, engine logs."""

    type: Literal["kernel_log", "kubernetes", "engine_log", "loki"] = Field(
        description=(
            "kernel_log: XIDs, OOM kills, links; kubernetes: Events, rollouts, changed flags, scaling, "
            "topology, start-ups; engine_log and loki: CUDA out of memory, NCCL timeouts, missing "
            "weights."
        )
    )
    name: str | None = Field(None, description="Unique name of the source. Default: its type.")
    url: str | None = Field(
        None,
        pattern=r"^https?://",
        description=(
            "URL of the API server, for example https://kubernetes.default.svc. For kernel_log: agent "
            "of a node, with `{node}` for each node name, or with `node` for one node."
        ),
    )
    path: Path | None = Field(
        None,
        description="kernel_log of this machine: /dev/kmsg, a pipe, or a file written by `journalctl -k -f -o json`.",
    )
    node: str | None = Field(None, description="kernel_log: node name of path or url.")
    namespaces: list[str] = Field([], description="Kubernetes namespaces. Default: all.")
    service_label: str = Field(
        "app.kubernetes.io/name", description="kubernetes: workload label that names the service."
    )
    label_selector: str = Field(
        "", description="engine_log: label selector of pods. Default: pods that request an accelerator."
    )
    container: str = Field("", description="engine_log: container name. Default: the container with the accelerator.")
    query: str = Field(
        "",
        description='loki: LogQL log query, for example {namespace="serving", container="vllm"}. A tenant is a header.',
    )
    prefilter: bool = Field(True, description="loki: let Loki drop lines that no pattern can match.")
    signals: Literal["auto", "always", "never"] = Field(
        "auto",
        description=(
            "kubernetes: signals of nodes, pods and workloads from the API; auto: only if no target "
            "reads kube-state-metrics of the cluster."
        ),
    )
    cluster: str | None = Field(None, description="Cluster, if it differs from the configured one.", pattern=r"^[^/]+$")
    every: Duration = Field(
        timedelta(0), description="Minimum time between two reads; 0s reads every cycle. Use 1m for many pods."
    )
    timeout: Duration = Field(timedelta(seconds=5), description="Deadline of a read.")


def event_problems(events: Sequence[EventSettings], document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Checks that each source has a unique name and the one address that its type requires."""
    seen: set[str] = set()
    for index, source in enumerate(events):
        path, name = ("events", index), source.name or source.type
        if name in seen:
            yield document.problem((*path, "name"), f"duplicate source name {name!r}")
        seen.add(name)
        if source.type != "kernel_log":
            if source.url is None:
                yield document.problem((*path, "url"), f"is required by a source of type {source.type}")
            if source.path is not None:
                yield document.problem((*path, "path"), "is for sources of type kernel_log")
            if source.type == "loki" and not source.query.strip().startswith("{"):
                message = (
                    'is required by a source of type loki; expected a LogQL selector such as {namespace="serving"}'
                )
                yield document.problem((*path, "query"), message)
        elif (source.url is None) == (source.path is None):
            yield document.problem(path, "expected either url or path")
        elif source.node is None and (source.path is not None or "{node}" not in (source.url or "")):
            yield document.problem(path, "expected node: the name of the node that writes the log")
