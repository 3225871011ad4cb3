"""Audits the workloads that serve models for misconfiguration, from their own objects. Pure.

Each rule is a function of one workload and its related objects. The texts of a rule are ``audit.<rule>.found`` and
``audit.<rule>.do`` in both languages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from collectors.kubernetes.api import Json, items, mapping, text, texts
from collectors.kubernetes.engine_args import (
    BATCH,
    NO_GRAPHS,
    NODES,
    EngineArgs,
    engine_args,
    pod_accelerators,
    serving_container,
)
from collectors.kubernetes.objects import (
    AUTOSCALERS,
    DISRUPTION_BUDGETS,
    QUOTAS,
    WORKLOADS,
    Objects,
    Resource,
    key_of,
    owner_of,
    selects,
)
from collectors.kubernetes.pod_templates import service_of, templated
from collectors.kubernetes.replicas import Replica, Replicas, replicas_of_workload
from collectors.kubernetes.state_metrics import number
from outrider.model import EntityKind, EntityRef
from outrider.text.i18n import Language, translate

LOAD_SECONDS = 300  # time for weights, compilation and capture of a large model; probes must wait this long
DRAIN_SECONDS = 60  # a long response takes about a minute
# paths that respond before the model is loaded
_EARLY_PATHS = frozenset({"/", "/metrics", "/docs", "/version", "/live", "/livez", "/v2/health/live", "/v2"})
_LENGTH_BY_FLAG = frozenset({"vllm", "sglang", "tgi", "tensorrt_llm", "lmdeploy"})
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the name of a mount in a pod
_RAY = frozenset({"RayService", "RayCluster"})


class Severity(StrEnum):
    """HIGH: fails or will fail; MEDIUM: costs capacity or safety; LOW: worth checking."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


_SEVERITY: dict[str, Severity] = {
    "tp-across-nvlink": Severity.HIGH,
    "tp-exceeds-gpus": Severity.HIGH,
    "gpus-unused": Severity.MEDIUM,
    "readiness-missing": Severity.HIGH,
    "readiness-before-load": Severity.HIGH,
    "liveness-kills-load": Severity.HIGH,
    "startup-probe-short": Severity.MEDIUM,
    "memory-limit-missing": Severity.MEDIUM,
    "cpu-request-missing": Severity.MEDIUM,
    "max-length-missing": Severity.MEDIUM,
    "no-disruption-budget": Severity.MEDIUM,
    "drain-blocked": Severity.MEDIUM,
    "single-replica": Severity.LOW,
    "batching-off": Severity.MEDIUM,
    "prefix-cache-off": Severity.LOW,
    "graphs-off": Severity.LOW,
    "image-floating": Severity.MEDIUM,
    "shared-memory-small": Severity.MEDIUM,
    "scales-on-cpu": Severity.MEDIUM,
    "quota-below-ceiling": Severity.MEDIUM,
    "grace-short": Severity.LOW,
}
RULES = tuple(_SEVERITY)


@dataclass(frozen=True, slots=True)
class WorkloadFinding:
    """One rule that a workload violates. ``texts`` fills its message templates."""

    rule: str
    workload: EntityRef
    kind: str
    service: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        """Severity of the rule."""
        return _SEVERITY[self.rule]

    def message(self, language: Language = "en") -> str:
        """The violation in one sentence."""
        return translate(f"audit.{self.rule}.found", language, **self.texts)

    def advice(self, language: Language = "en") -> str:
        """The remedy in one sentence."""
        return translate(f"audit.{self.rule}.do", language, **self.texts)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, texts in both languages."""
        return {
            "rule": self.rule,
            "severity": self.severity.value,
            "cluster": self.workload.cluster,
            "namespace": self.workload.namespace,
            "workload": self.workload.name,
            "kind": self.kind,
            "service": self.service,
            "found": {"en": self.message("en"), "zh": self.message("zh")},
            "do": {"en": self.advice("en"), "zh": self.advice("zh")},
        }


@dataclass(frozen=True, slots=True)
class _Subject:
    """One workload that serves a model, and the inputs of its rules."""

    kind: str
    namespace: str
    name: str
    replicas: float
    pod: Json
    labels: Mapping[str, str]
    container: Json
    args: EngineArgs
    gpus: float
    size: float
    running: tuple[Replica, ...]
    objects: Objects


_Broken = Iterator[tuple[str, dict[str, str]]]


def audit(objects: Objects, replicas: Replicas, cluster: str) -> tuple[WorkloadFinding, ...]:
    """All violations, most severe first, then by workload."""
    findings = []
    for resource in WORKLOADS:
        for item in objects.all(resource):
            owner = owner_of(item)[0]
            if any(each.kind == owner for each in WORKLOADS) and objects.has(owner):
                continue
            template = templated(resource, item)
            subject = _subject(resource, template, objects, replicas)
            if subject is None:
                continue
            entity = EntityRef(cluster, EntityKind.WORKLOAD, subject.namespace or None, subject.name)
            service = service_of(template, "app.kubernetes.io/name")
            findings += [
                WorkloadFinding(rule, entity, resource.kind, service, texts)
                for check in _CHECKS
                for rule, texts in check(subject)
            ]
    ranks = list(Severity)
    return tuple(sorted(findings, key=lambda item: (ranks.index(item.severity), item.workload.key, item.rule)))


def _subject(resource: Resource, template: Json, objects: Objects, replicas: Replicas) -> _Subject | None:
    pod_template = mapping(mapping(template.get("spec")).get("template"))
    pod = mapping(pod_template.get("spec"))
    container = serving_container(pod)
    gpus = sum(pod_accelerators(pod).values())
    if not container or not gpus:
        return None
    namespace, name = key_of(template)
    return _Subject(
        kind=resource.kind,
        namespace=namespace,
        name=name,
        replicas=number(mapping(template.get("spec")).get("replicas"), 1.0),
        pod=pod,
        labels=texts(mapping(pod_template.get("metadata")).get("labels")),
        container=container,
        args=engine_args(container),
        gpus=gpus,
        size=number(pod_template.get("size"), 1.0),
        running=tuple(replicas_of_workload(replicas.replicas.values(), namespace, name)),
        objects=objects,
    )


# --- rules ----------------------------------------------------------------------------------------


def _parallelism(subject: _Subject) -> _Broken:
    args = subject.args
    tensor, needed = args.tensor_parallel, args.tensor_parallel * args.pipeline_parallel
    for replica in subject.running:
        of_one_pod = max(pod.gpus for pod in replica.pods)
        if tensor > of_one_pod and len(replica.domains) > 1:
            texts = {"tp": str(tensor), "replica": replica.name, "domains": ", ".join(sorted(replica.domains))}
            yield "tp-across-nvlink", texts
            break
    one_pod = subject.size <= 1 and subject.kind not in _RAY and (args.number(*NODES) or 1) <= 1
    if not one_pod or not args.engine:
        return
    texts = {"tp": str(tensor), "pp": str(args.pipeline_parallel), "gpus": f"{subject.gpus:g}"}
    if needed > subject.gpus:
        yield "tp-exceeds-gpus", texts
    elif needed * args.data_parallel < subject.gpus and args.engine in _LENGTH_BY_FLAG:
        yield "gpus-unused", {**texts, "used": str(needed * args.data_parallel)}


def _probes(subject: _Subject) -> _Broken:
    probes = {name: mapping(subject.container.get(f"{name}Probe")) for name in ("readiness", "liveness", "startup")}
    ready, alive, start = probes["readiness"], probes["liveness"], probes["startup"]
    path = text(mapping(ready.get("httpGet")).get("path")) or "/"
    if not ready:
        yield "readiness-missing", {}
    elif ready.get("tcpSocket") is not None:
        yield "readiness-before-load", {"probe": "tcpSocket"}
    elif ready.get("httpGet") is not None and path.rstrip("/") in {
        early_path.rstrip("/") for early_path in _EARLY_PATHS
    }:
        yield "readiness-before-load", {"probe": f"GET {path}"}
    if alive and not start and _failure_seconds(alive) < LOAD_SECONDS:
        yield "liveness-kills-load", {"seconds": f"{_failure_seconds(alive):g}"}
    if start and _failure_seconds(start) < LOAD_SECONDS:
        yield "startup-probe-short", {"seconds": f"{_failure_seconds(start):g}"}


def _failure_seconds(probe: Json) -> float:
    """Seconds until a probe that never succeeds fails finally; the defaults are those of Kubernetes."""
    delay, period, failures = (
        number(probe.get(name), default)
        for name, default in (("initialDelaySeconds", 0.0), ("periodSeconds", 10.0), ("failureThreshold", 3.0))
    )
    return delay + period * failures


def _amounts(subject: _Subject) -> _Broken:
    resources = mapping(subject.container.get("resources"))
    limits, requests = mapping(resources.get("limits")), mapping(resources.get("requests"))
    if "memory" not in limits:
        yield "memory-limit-missing", {}
    if "cpu" not in limits and "cpu" not in requests:
        yield "cpu-request-missing", {}
    if subject.args.tensor_parallel > 1 and not _has_shared_memory(subject):
        yield "shared-memory-small", {"tp": str(subject.args.tensor_parallel)}
    grace = number(subject.pod.get("terminationGracePeriodSeconds"), 30.0)
    if grace < DRAIN_SECONDS:
        yield "grace-short", {"seconds": f"{grace:g}", "wanted": str(DRAIN_SECONDS)}


def _has_shared_memory(subject: _Subject) -> bool:
    in_memory = {
        text(entry.get("name"))
        for entry in items(subject.pod.get("volumes"))
        if mapping(entry.get("emptyDir")).get("medium") == "Memory"
    }
    mounts = items(subject.container.get("volumeMounts"))
    return subject.pod.get("hostIPC") is True or any(
        text(entry.get("mountPath")).rstrip("/") == _SHARED_MEMORY and text(entry.get("name")) in in_memory
        for entry in mounts
    )


def _engine(subject: _Subject) -> _Broken:
    args = subject.args
    if args.engine in _LENGTH_BY_FLAG and not args.max_length_set:
        yield "max-length-missing", {"engine": args.engine}
    if args.number(*BATCH) == 1:
        yield "batching-off", {"flag": next(f"{name}={args.flags[name]}" for name in BATCH if name in args.flags)}
    if args.prefix_cache_off:
        yield "prefix-cache-off", {}
    if args.is_set(*NO_GRAPHS):
        yield "graphs-off", {"flag": next(name for name in NO_GRAPHS if name in args.flags)}
    image = text(subject.container.get("image"))
    tag = image.rsplit("/", 1)[-1].partition(":")[2]
    if image and "@sha256:" not in image and tag in ("", "latest"):
        yield "image-floating", {"image": image}


def _disruption(subject: _Subject) -> _Broken:
    if subject.replicas == 1:
        yield "single-replica", {}
    budgets = [
        budget
        for budget in subject.objects.all(DISRUPTION_BUDGETS)
        if key_of(budget)[0] == subject.namespace
        and selects(mapping(mapping(budget.get("spec")).get("selector")), subject.labels)
    ]
    if not budgets and subject.replicas >= 2:
        yield "no-disruption-budget", {"replicas": f"{subject.replicas:g}"}
    for budget in budgets:
        status = mapping(budget.get("status"))
        healthy, desired = (number(status.get(name), 0.0) for name in ("currentHealthy", "desiredHealthy"))
        expected = number(status.get("expectedPods"), 0.0)
        if (
            expected
            and number(status.get("disruptionsAllowed"), 0.0) == 0
            and healthy >= expected >= desired >= expected
        ):
            yield "drain-blocked", {"budget": key_of(budget)[1]}


def _scaling(subject: _Subject) -> _Broken:
    for scaler in subject.objects.all(AUTOSCALERS):
        spec = mapping(scaler.get("spec"))
        target = mapping(spec.get("scaleTargetRef"))
        if (key_of(scaler)[0], text(target.get("kind")), text(target.get("name"))) != (
            subject.namespace,
            subject.kind,
            subject.name,
        ):
            continue
        names = [text(mapping(each.get("resource")).get("name")) for each in items(spec.get("metrics"))]
        kinds = {text(each.get("type")) for each in items(spec.get("metrics"))}
        if kinds == {"Resource"}:
            yield "scales-on-cpu", {"scaler": key_of(scaler)[1], "metrics": ", ".join(filter(None, names))}
        yield from _quota(subject, number(spec.get("maxReplicas"), 0.0))


def _quota(subject: _Subject, ceiling: float) -> _Broken:
    requested = pod_accelerators(subject.pod)
    for quota in subject.objects.all(QUOTAS):
        hard = mapping(mapping(quota.get("spec")).get("hard"))
        for name, amount in requested.items():
            allowed = number(hard.get(f"requests.{name}"), float("inf"))
            needed = ceiling * amount * max(1.0, subject.size)
            if key_of(quota)[0] == subject.namespace and needed > allowed:
                texts = {
                    "quota": key_of(quota)[1],
                    "allowed": f"{allowed:g}",
                    "wanted": f"{needed:g}",
                    "resource": name,
                }
                yield "quota-below-ceiling", texts


_CHECKS = (_parallelism, _probes, _amounts, _engine, _disruption, _scaling)
