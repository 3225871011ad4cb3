"""The plan as documents: patches, annotations, scalers and files for other controllers. Renders only, sends nothing.

A document sets the least number of replicas (the floor required by the plan), never ``replicas`` of an object that
another controller sets; the sender checks the object first. Formats follow HPA v2, KEDA 2 (``ScaledObject``, triggers
``cron`` and ``metrics-api``) and Knative Serving 1; ``tests/service/test_documents_accepted.py`` applies each
to an API server with the real definitions.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

import numpy as np
import yaml

from outrider.clock import from_unix, rfc3339
from outrider.errors import UsageError
from outrider.model import Forecast, Recommendation

Kind = Literal["hpa", "scaled_object", "knative", "deployment", "cron", "kustomize", "webhook"]
PLAN_ANNOTATION, REASON_ANNOTATION = "outrider.io/plan", "outrider.io/because"
KNATIVE_MIN_SCALE = "autoscaling.knative.dev/min-scale"
_PATHS = {
    "hpa": "/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers/{name}",
    "scaled_object": "/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects/{name}",
    "knative": "/apis/serving.knative.dev/v1/namespaces/{namespace}/services/{name}",
    "deployment": "/apis/apps/v1/namespaces/{namespace}/deployments/{name}",
}
_GROUPS = {
    "hpa": ("autoscaling", "v2", "HorizontalPodAutoscaler", "minReplicas"),
    "scaled_object": ("keda.sh", "v1alpha1", "ScaledObject", "minReplicaCount"),
}
_QUANTILE = 0.95
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ScalingTarget:
    """Target of a service's replica count. ``file`` is a path inside a Git repository, for kustomize."""

    kind: Kind
    name: str
    namespace: str
    timezone: str = "UTC"
    file: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """One document. ``path`` is the API path for it as a merge patch, empty for a file.

    ``sets`` is the field with the number, ``most`` the field of the same object that limits it.
    """

    service: str
    kind: Kind
    file: str
    body: Mapping[str, Any]
    text: str
    path: str = ""
    sets: tuple[str, ...] = ()
    most: tuple[str, ...] = ()
    replicas: int = 0


def documents(
    recommendation: Recommendation, targets: Sequence[ScalingTarget], forecast: Forecast | None = None, *, url: str = ""
) -> tuple[Document, ...]:
    """Renders every document of a recommendation. ``url`` is Outrider's API, queried by KEDA's triggers."""
    return tuple(render(recommendation, target, forecast, url=url) for target in targets)


def render(
    recommendation: Recommendation, target: ScalingTarget, forecast: Forecast | None = None, *, url: str = ""
) -> Document:
    """Renders one document. Raises UsageError for a cron scaler without a forecast."""
    if target.kind == "webhook":
        return _webhook(recommendation, target)
    if target.kind == "kustomize":
        return _kustomize(recommendation, target)
    if target.kind == "cron":
        if forecast is None:
            raise UsageError(f"{target.name} has no forecast for a cron schedule", hint="see outrider capacity plan")
        return _cron(recommendation, target, forecast, url)
    replicas, notes = recommendation.target_replicas, _notes(recommendation)
    if target.kind == "hpa":
        # an HPA without the alpha feature for zero needs at least 1
        body = {"metadata": {"annotations": notes}, "spec": {"minReplicas": max(1, replicas)}}
        return _patch(recommendation, target, body, ("spec", "minReplicas"), ("spec", "maxReplicas"))
    if target.kind == "scaled_object":
        body = {"metadata": {"annotations": notes}, "spec": {"minReplicaCount": replicas}}
        return _patch(recommendation, target, body, ("spec", "minReplicaCount"), ("spec", "maxReplicaCount"))
    if target.kind == "knative":
        # on the revision: changing the service's template would create a new one, and restart every replica
        body = {"metadata": {"annotations": {**notes, KNATIVE_MIN_SCALE: str(replicas)}}}
        return _patch(recommendation, target, body, ("metadata", "annotations", KNATIVE_MIN_SCALE), ())
    return _patch(recommendation, target, {"spec": {"replicas": replicas}}, ("spec", "replicas"), ())


def git_patch(document: Document, before: str) -> str:
    """Returns a patch for ``git apply`` from ``before``, empty for a new file, to the document.

    Empty without changes.
    """
    if before == document.text:
        return ""
    path, old = document.file, before.splitlines(keepends=True)
    lines = difflib.unified_diff(old, document.text.splitlines(keepends=True), f"a/{path}", f"b/{path}")
    head = [f"diff --git a/{path} b/{path}\n"]
    if not before:
        head.append("new file mode 100644\n")
        lines = difflib.unified_diff([], document.text.splitlines(keepends=True), "/dev/null", f"b/{path}")
    return "".join([*head, *lines])


def payload(recommendation: Recommendation) -> dict[str, Any]:
    """Body of a webhook; the same plan always has the same id."""
    return {
        "id": f"{recommendation.service.key}@{rfc3339(recommendation.made_at)}",
        "service": recommendation.service.name,
        "namespace": recommendation.service.namespace,
        "cluster": recommendation.service.cluster,
        "gpu_type": recommendation.gpu_type,
        "current_replicas": recommendation.current_replicas,
        "target_replicas": recommendation.target_replicas,
        "gpus": recommendation.gpus,
        "need_at": None if recommendation.need_at is None else rfc3339(recommendation.need_at),
        "needed_by": None if recommendation.needed_by is None else rfc3339(recommendation.needed_by),
        "lead_time_seconds": recommendation.lead_time.total_seconds(),
        "reason": recommendation.reason.value,
        "binding": recommendation.binding,
        "made_at": rfc3339(recommendation.made_at),
    }


def hours(recommendation: Recommendation, forecast: Forecast, timezone: str) -> list[tuple[datetime, datetime, int]]:
    """Spans of whole hours of the next day in local time, with their replicas; equal adjacent spans are merged.

    Each hour has the need of its own p95 and of the lead time after it, so that a start is not late.
    """
    capacity = recommendation.derivation.get("capacity_now") or 0.0
    per_replica = capacity / recommendation.current_replicas if recommendation.current_replicas else 0.0
    if per_replica <= 0:
        return []
    zone, values = ZoneInfo(timezone), forecast.quantiles[_QUANTILE]
    begins = from_unix(float(forecast.times[0])).astimezone(zone).replace(minute=0, second=0, microsecond=0)
    spans: list[tuple[datetime, datetime, int]] = []
    for number in range(24):
        start = begins + timedelta(hours=number)
        end = start + timedelta(hours=1)
        inside = (forecast.times >= start.timestamp()) & (
            forecast.times < end.timestamp() + recommendation.lead_time.total_seconds()
        )
        if not inside.any():
            continue
        wanted = int(np.ceil(float(values[inside].max()) / per_replica - 1e-9))
        wanted = min(max(wanted, recommendation.floor), recommendation.ceiling)
        if spans and spans[-1][2] == wanted and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end, wanted)
        else:
            spans.append((start, end, wanted))
    return spans


def _patch(
    recommendation: Recommendation,
    target: ScalingTarget,
    body: dict[str, Any],
    field: tuple[str, ...],
    most: tuple[str, ...],
) -> Document:
    path = _PATHS[target.kind].format(namespace=target.namespace, name=target.name)
    return Document(
        service=recommendation.service.name,
        kind=target.kind,
        file=f"{target.kind}-{target.namespace}-{target.name}.yaml",
        body=body,
        text=_yaml(body),
        path=path,
        sets=field,
        most=most,
        replicas=recommendation.target_replicas,
    )


def _kustomize(recommendation: Recommendation, target: ScalingTarget) -> Document:
    """A component for Argo CD or Flux: it patches the least replicas of HPA and ScaledObject."""
    patches = []
    for group, version, kind, name in _GROUPS.values():
        value = (
            max(1, recommendation.target_replicas)
            if kind == "HorizontalPodAutoscaler"
            else recommendation.target_replicas
        )
        # a merge patch by name: kustomize skips a missing target
        inline = {
            "apiVersion": f"{group}/{version}",
            "kind": kind,
            "metadata": {"name": target.name, "annotations": _notes(recommendation)},
            "spec": {name: value},
        }
        match_target = {
            "group": group,
            "version": version,
            "kind": kind,
            "name": target.name,
            "namespace": target.namespace,
        }
        patches.append({"target": match_target, "patch": _yaml(inline)})
    body = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", "patches": patches}
    name = target.file or f"outrider/{target.namespace}-{target.name}/kustomization.yaml"
    return Document(
        recommendation.service.name, target.kind, name, body, _yaml(body), replicas=recommendation.target_replicas
    )


def _cron(recommendation: Recommendation, target: ScalingTarget, forecast: Forecast, url: str) -> Document:
    """A ScaledObject with the least of the day as its floor, a cron trigger for each span above, and the plan's number.

    The plan's number needs ``url``. Objects that KEDA refuses are avoided: an object without a trigger, a span that
    starts and ends at the same hour (every hour has the same need), and a floor above the ceiling.
    """
    spans = hours(recommendation, forecast, target.timezone)
    most = max(1, recommendation.ceiling)
    whole = sum((end - start for start, end, _ in spans), timedelta(0)) >= _DAY
    least = min(max(recommendation.floor, min(wanted for *_, wanted in spans)) if whole else recommendation.floor, most)
    triggers = [_cron_trigger(start, end, wanted, target.timezone) for start, end, wanted in spans if wanted > least]
    if url:
        service = f"{recommendation.service.namespace or '-'}/{recommendation.service.name}"
        metadata = {"url": f"{url}/api/v1/scaling/{service}", "valueLocation": "value", "targetValue": "1"}
        triggers.append({"type": "metrics-api", "metricType": "AverageValue", "metadata": metadata})
    if not triggers:
        # constant all day: half a day at that number changes nothing, and an object needs a trigger
        begins = from_unix(float(forecast.times[0])).astimezone(ZoneInfo(target.timezone)).replace(minute=0)
        steady = max(1, least if whole else min(recommendation.target_replicas, most))
        triggers.append(_cron_trigger(begins, begins + _DAY / 2, steady, target.timezone))
    body = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": target.name, "namespace": target.namespace, "annotations": _notes(recommendation)},
        "spec": {
            "scaleTargetRef": {"name": target.name},
            "minReplicaCount": least,
            "maxReplicaCount": most,
            "triggers": triggers,
        },
    }
    file = f"cron-{target.namespace}-{target.name}.yaml"
    return Document(
        recommendation.service.name, target.kind, file, body, _yaml(body), replicas=recommendation.target_replicas
    )


def _cron_trigger(start: datetime, end: datetime, replicas: int, timezone: str) -> dict[str, Any]:
    """One span of each day."""
    metadata = {
        "timezone": timezone,
        "start": f"{start.minute} {start.hour} * * *",
        "end": f"{end.minute} {end.hour} * * *",
        "desiredReplicas": str(replicas),
    }
    return {"type": "cron", "metadata": metadata}


def _webhook(recommendation: Recommendation, target: ScalingTarget) -> Document:
    body = payload(recommendation)
    return Document(
        recommendation.service.name,
        target.kind,
        f"webhook-{target.name}.yaml",
        body,
        _yaml(body),
        replicas=recommendation.target_replicas,
    )


def _notes(recommendation: Recommendation) -> dict[str, str]:
    return {PLAN_ANNOTATION: rfc3339(recommendation.made_at), REASON_ANNOTATION: recommendation.reason.value}


def _yaml(body: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(body), sort_keys=False, allow_unicode=True)
