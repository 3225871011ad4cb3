"""Advice for faster starts: the phase to shorten first, saving and cost of each remedy, and the documents to apply.

Documents are Kubernetes objects as plain values; this module sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from outrider.records.change_log import StartPhase, Startup, lead_time_quantile
from planner.manifests import kube_gpus, prepull
from planner.manifests.kube_names import LABEL, PART_OF, name_of, short

Document = Mapping[str, Any]

_MOST_NAME = 24  # with "-warm-up-", two digests and the suffix of a pod within 63
BALLOON_PRIORITY = -10
"""Below every pod without a priority class, so that any of those preempts a balloon."""


@dataclass(frozen=True, slots=True)
class WarmSettings:
    """Settings of one service. ``gpu_resource`` is the resource its pods request; ``spare`` replicas are kept ahead.

    ``node_selector`` are the labels of the nodes for balloons and for the image. ``pre_pull`` is the method to pull
    ``image`` ahead; by default a DaemonSet, which needs no node names.
    """

    service: str
    namespace: str = "default"
    image: str | None = None
    url: str | None = None
    model: str | None = None
    gpus: int = 1
    gpu_resource: str = kube_gpus.NVIDIA
    node_selector: Mapping[str, str] | None = None
    spare: int = 1
    price_per_gpu_hour: float | None = None
    pre_pull: prepull.PrePull = prepull.TO_COME


@dataclass(frozen=True, slots=True)
class Remedy:
    """Time that one remedy saves of a start, and its cost while nothing starts.

    ``idle_cost_per_hour`` is None without a price. ``phases`` are those it shortens.
    """

    name: str
    phases: tuple[str, ...]
    seconds_saved: float
    idle_gpus: int
    idle_cost_per_hour: float | None


@dataclass(frozen=True, slots=True)
class WarmPlan:
    """``phases``: median seconds of each phase; ``attack_first`` is None without a measured start."""

    service: str
    starts: int
    phases: Mapping[str, float]
    lead_time_p95_seconds: float | None
    attack_first: str | None
    remedies: tuple[Remedy, ...]
    documents: tuple[Document, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


_REMEDIES = {
    "balloon_pods": (StartPhase.NODE_PROVISION, StartPhase.SCHEDULE),
    "image_pre_pull": (StartPhase.PULL,),
    "weights_on_node": (StartPhase.WEIGHT_LOAD,),
    "compile_cache": (StartPhase.COMPILE, StartPhase.GRAPH_CAPTURE),
    "warm_up_prompts": (StartPhase.WARM_UP, StartPhase.FIRST_REQUEST),
}
_HOLDS_GPUS = frozenset({"balloon_pods", "warm_pool"})


def phases_of(startups: Sequence[Startup]) -> dict[str, float]:
    """Median seconds of each phase over the starts that report it, in order of occurrence."""
    seconds_by_phase: dict[str, list[float]] = {}
    for start in startups:
        for phase in start.phases:
            seconds_by_phase.setdefault(phase.phase.value, []).append(phase.seconds)
    return {
        phase.value: median(seconds_by_phase[phase.value]) for phase in StartPhase if phase.value in seconds_by_phase
    }


def warm(settings: WarmSettings, phases: Mapping[str, float], startups: Sequence[Startup] = ()) -> WarmPlan:
    """Returns remedies, largest saving first, and the documents that implement them.

    ``phases`` are seconds by phase, measured (``phases_of``) or given. The time a ready replica waits for its first
    request cannot be saved, and does not count.
    """
    avoidable = {name: seconds for name, seconds in phases.items() if name != StartPhase.FIRST_REQUEST}
    lead = lead_time_quantile(startups)
    total = lead.total_seconds() if lead is not None else sum(avoidable.values())
    remedies = [_remedy(settings, name, covered, avoidable) for name, covered in _REMEDIES.items()]
    remedies = [remedy for remedy in remedies if remedy.seconds_saved > 0]
    if total > 0:
        remedies.append(_holding(settings, "warm_pool", tuple(avoidable), total))
    remedies.sort(key=lambda remedy: (remedy.idle_gpus > 0, -remedy.seconds_saved))
    return WarmPlan(
        settings.service,
        len(startups),
        dict(phases),
        lead.total_seconds() if lead is not None else None,
        max(avoidable, key=lambda name: avoidable[name]) if avoidable else None,
        tuple(remedies),
        documents(settings),
    )


def documents(settings: WarmSettings) -> tuple[Document, ...]:
    """PriorityClass and balloon Deployment; the image pre-pull with its own class; the prompts if a URL is given."""
    objects: list[Document] = [_priority(), _balloons(settings)]
    if settings.image:
        subject = prepull.Subject(
            settings.service, settings.namespace, settings.image, settings.gpu_resource, settings.node_selector
        )
        objects += prepull.documents(subject, settings.pre_pull)
    if settings.url:
        objects.append(_prompts(settings, settings.url))
    return tuple(objects)


def _remedy(settings: WarmSettings, name: str, covered: Sequence[StartPhase], phases: Mapping[str, float]) -> Remedy:
    names = tuple(phase.value for phase in covered if phase.value in phases)
    saved = sum(phases[phase] for phase in names)
    if name in _HOLDS_GPUS:
        return _holding(settings, name, names, saved)
    return Remedy(name, names, saved, 0, 0.0)


def _holding(settings: WarmSettings, name: str, phases: tuple[str, ...], saved: float) -> Remedy:
    gpus = settings.spare * settings.gpus
    price = settings.price_per_gpu_hour
    return Remedy(name, phases, saved, gpus, None if price is None else gpus * price)


def _labels(settings: WarmSettings, name: str) -> dict[str, str]:
    return {LABEL: name, PART_OF: name_of(settings.service)}


def _meta(settings: WarmSettings, name: str) -> dict[str, Any]:
    full = f"{name_of(settings.service)}-{name}"
    return {"name": full, "namespace": settings.namespace, "labels": _labels(settings, name)}


def _priority() -> Document:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "outrider-balloon"},
        "value": BALLOON_PRIORITY,
        "globalDefault": False,
        "preemptionPolicy": "Never",
        "description": "Holds GPUs until a replica needs them; pushed out by any other pod.",
    }


def _pod(settings: WarmSettings, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    keys = kube_gpus.taints_of(settings.gpu_resource)
    tolerations = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    return {"metadata": {"labels": _labels(settings, name)}, "spec": {"tolerations": tolerations, **spec}}


def _balloons(settings: WarmSettings) -> Document:
    resources = {"limits": {settings.gpu_resource: settings.gpus}, "requests": {"cpu": "10m", "memory": "16Mi"}}
    container = {"name": "balloon", "image": prepull.PAUSE_IMAGE, "resources": resources}
    chosen = {"nodeSelector": dict(settings.node_selector)} if settings.node_selector else {}
    priority = {"priorityClassName": "outrider-balloon", "terminationGracePeriodSeconds": 0}
    spec = {**chosen, **priority, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(settings, "balloon"),
        "spec": {
            "replicas": settings.spare,
            "selector": {"matchLabels": _labels(settings, "balloon")},
            "template": _pod(settings, "balloon", spec),
        },
    }


def _prompts(settings: WarmSettings, url: str) -> Document:
    """A Job named by a digest of its template and URL: a Job's template cannot be changed. Any node may run its pod."""
    script = (
        "import json, os, urllib.request as r\n"
        "for n in (16, 512, 2048):\n"
        "    body = json.dumps({'model': os.environ['MODEL'], 'prompt': 'warm ' * n, 'max_tokens': 16}).encode()\n"
        "    ask = r.Request(os.environ['URL'] + '/v1/completions', body, {'Content-Type': 'application/json'})\n"
        "    print(n, r.urlopen(ask, timeout=300).status)\n"
    )
    container = {
        "name": "prompts",
        "image": "python:3.12-alpine",
        "command": ["python", "-c", script],
        "env": [
            {"name": "URL", "value": url.rstrip("/")},
            {"name": "MODEL", "value": settings.model or settings.service},
        ],
    }
    pod = _pod(settings, "warm-up", {"restartPolicy": "OnFailure", "containers": [container]})
    name = f"{name_of(settings.service, _MOST_NAME)}-warm-up-{short(json.dumps(pod, sort_keys=True), 10)}"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**_meta(settings, "warm-up"), "name": name},
        "spec": {"backoffLimit": 4, "ttlSecondsAfterFinished": 3600, "template": pod},
    }
