"""The plan as documents: patches, annotations, scalers and files that others read. Renders, and sends nothing.

A document says the least number of replicas (the floor that the plan wants), never ``replicas`` of an object that
another controller sets; whoever sends one looks at the object first. Numbers follow the format of HPA v2,
KEDA 2 (``ScaledObject``, triggers ``cron`` and ``metrics-api``) and Knative Serving 1;
``tests/service/test_documents_accepted.py`` applies each to an API server with the real definitions.
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
class Aim:
    """Where a service's number goes. ``file`` is a path inside a Git repository, for kustomize."""

    kind: Kind
    name: str
    namespace: str
    timezone: str = "UTC"
    file: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """One document. ``path`` is where an API server takes it as a merge patch, empty for a file.

    ``sets`` is the field with the number, ``most`` the field of the same object that the number may not exceed.
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
    found: Recommendation, aims: Sequence[Aim], forecast: Forecast | None = None, *, url: str = ""
) -> tuple[Document, ...]:
    """Everything that a recommendation is told as. ``url`` is Outrider's API, which KEDA's triggers ask."""
    return tuple(render(found, aim, forecast, url=url) for aim in aims)


def render(found: Recommendation, aim: Aim, forecast: Forecast | None = None, *, url: str = "") -> Document:
    """One document. Raises UsageError for a cron scaler without a forecast."""
    if aim.kind == "webhook":
        return _webhook(found, aim)
    if aim.kind == "kustomize":
        return _kustomize(found, aim)
    if aim.kind == "cron":
        if forecast is None:
            raise UsageError(f"{aim.name} has no forecast to make hours of", hint="see outrider capacity plan")
        return _cron(found, aim, forecast, url)
    replicas, notes = found.target_replicas, _notes(found)
    if aim.kind == "hpa":
        # an HPA without the alpha feature for zero takes 1 at least
        body = {"metadata": {"annotations": notes}, "spec": {"minReplicas": max(1, replicas)}}
        return _patch(found, aim, body, ("spec", "minReplicas"), ("spec", "maxReplicas"))
    if aim.kind == "scaled_object":
        body = {"metadata": {"annotations": notes}, "spec": {"minReplicaCount": replicas}}
        return _patch(found, aim, body, ("spec", "minReplicaCount"), ("spec", "maxReplicaCount"))
    if aim.kind == "knative":
        # on the revision: a change of the service's template would make a new one, and start every replica anew
        body = {"metadata": {"annotations": {**notes, KNATIVE_MIN_SCALE: str(replicas)}}}
        return _patch(found, aim, body, ("metadata", "annotations", KNATIVE_MIN_SCALE), ())
    return _patch(found, aim, {"spec": {"replicas": replicas}}, ("spec", "replicas"), ())


def git_patch(document: Document, before: str) -> str:
    """What ``git apply`` takes: from ``before``, empty for a new file, to the document. Empty when nothing changes."""
    if before == document.text:
        return ""
    path, old = document.file, before.splitlines(keepends=True)
    lines = difflib.unified_diff(old, document.text.splitlines(keepends=True), f"a/{path}", f"b/{path}")
    head = [f"diff --git a/{path} b/{path}\n"]
    if not before:
        head.append("new file mode 100644\n")
        lines = difflib.unified_diff([], document.text.splitlines(keepends=True), "/dev/null", f"b/{path}")
    return "".join([*head, *lines])


def payload(found: Recommendation) -> dict[str, Any]:
    """What a webhook is told; the same plan always bears the same id."""
    return {
        "id": f"{found.service.key}@{rfc3339(found.made_at)}",
        "service": found.service.name,
        "namespace": found.service.namespace,
        "cluster": found.service.cluster,
        "gpu_type": found.gpu_type,
        "current_replicas": found.current_replicas,
        "target_replicas": found.target_replicas,
        "gpus": found.gpus,
        "need_at": None if found.need_at is None else rfc3339(found.need_at),
        "needed_by": None if found.needed_by is None else rfc3339(found.needed_by),
        "lead_time_seconds": found.lead_time.total_seconds(),
        "reason": found.reason.value,
        "binding": found.binding,
        "made_at": rfc3339(found.made_at),
    }


def hours(found: Recommendation, forecast: Forecast, timezone: str) -> list[tuple[datetime, datetime, int]]:
    """Spans of whole hours of the next day, in local time, and the replicas of each; equal neighbours are joined.

    Each hour has what its own p95 and the one of the lead time after it needs, so that a start is not late.
    """
    carried = found.derivation.get("capacity_now") or 0.0
    each = carried / found.current_replicas if found.current_replicas else 0.0
    if each <= 0:
        return []
    zone, values = ZoneInfo(timezone), forecast.quantiles[_QUANTILE]
    begins = from_unix(float(forecast.times[0])).astimezone(zone).replace(minute=0, second=0, microsecond=0)
    spans: list[tuple[datetime, datetime, int]] = []
    for number in range(24):
        start = begins + timedelta(hours=number)
        end = start + timedelta(hours=1)
        inside = (forecast.times >= start.timestamp()) & (
            forecast.times < end.timestamp() + found.lead_time.total_seconds()
        )
        if not inside.any():
            continue
        wanted = int(np.ceil(float(values[inside].max()) / each - 1e-9))
        wanted = min(max(wanted, found.floor), found.ceiling)
        if spans and spans[-1][2] == wanted and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end, wanted)
        else:
            spans.append((start, end, wanted))
    return spans


def _patch(
    found: Recommendation, aim: Aim, body: dict[str, Any], where: tuple[str, ...], most: tuple[str, ...]
) -> Document:
    path = _PATHS[aim.kind].format(namespace=aim.namespace, name=aim.name)
    return Document(
        service=found.service.name,
        kind=aim.kind,
        file=f"{aim.kind}-{aim.namespace}-{aim.name}.yaml",
        body=body,
        text=_yaml(body),
        path=path,
        sets=where,
        most=most,
        replicas=found.target_replicas,
    )


def _kustomize(found: Recommendation, aim: Aim) -> Document:
    """A component that Argo CD or Flux builds with the rest: it patches the least replicas of HPA and ScaledObject."""
    patches = []
    for group, version, kind, name in _GROUPS.values():
        value = max(1, found.target_replicas) if kind == "HorizontalPodAutoscaler" else found.target_replicas
        # a merge patch by name: kustomize leaves out a target that is not there
        inline = {
            "apiVersion": f"{group}/{version}",
            "kind": kind,
            "metadata": {"name": aim.name, "annotations": _notes(found)},
            "spec": {name: value},
        }
        target = {"group": group, "version": version, "kind": kind, "name": aim.name, "namespace": aim.namespace}
        patches.append({"target": target, "patch": _yaml(inline)})
    body = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", "patches": patches}
    name = aim.file or f"outrider/{aim.namespace}-{aim.name}/kustomization.yaml"
    return Document(found.service.name, aim.kind, name, body, _yaml(body), replicas=found.target_replicas)


def _cron(found: Recommendation, aim: Aim, forecast: Forecast, url: str) -> Document:
    """A ScaledObject: the least of the day as its floor, a cron trigger for each span above, and the plan's own number.

    The last where ``url`` is. What KEDA refuses is not written: an object without a trigger, a span that begins and
    ends at the same hour (every hour needs the same), and a floor above the ceiling.
    """
    spans = hours(found, forecast, aim.timezone)
    most = max(1, found.ceiling)
    whole = sum((end - start for start, end, _ in spans), timedelta(0)) >= _DAY
    least = min(max(found.floor, min(wanted for *_, wanted in spans)) if whole else found.floor, most)
    triggers = [_cron_trigger(start, end, wanted, aim.timezone) for start, end, wanted in spans if wanted > least]
    if url:
        service = f"{found.service.namespace or '-'}/{found.service.name}"
        metadata = {"url": f"{url}/api/v1/scaling/{service}", "valueLocation": "value", "targetValue": "1"}
        triggers.append({"type": "metrics-api", "metricType": "AverageValue", "metadata": metadata})
    if not triggers:
        # the same all day long: half a day at that number changes nothing, and an object needs a trigger
        begins = from_unix(float(forecast.times[0])).astimezone(ZoneInfo(aim.timezone)).replace(minute=0)
        steady = max(1, least if whole else min(found.target_replicas, most))
        triggers.append(_cron_trigger(begins, begins + _DAY / 2, steady, aim.timezone))
    body = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": aim.name, "namespace": aim.namespace, "annotations": _notes(found)},
        "spec": {
            "scaleTargetRef": {"name": aim.name},
            "minReplicaCount": least,
            "maxReplicaCount": most,
            "triggers": triggers,
        },
    }
    file = f"cron-{aim.namespace}-{aim.name}.yaml"
    return Document(found.service.name, aim.kind, file, body, _yaml(body), replicas=found.target_replicas)


def _cron_trigger(start: datetime, end: datetime, replicas: int, timezone: str) -> dict[str, Any]:
    """One span of each day."""
    metadata = {
        "timezone": timezone,
        "start": f"{start.minute} {start.hour} * * *",
        "end": f"{end.minute} {end.hour} * * *",
        "desiredReplicas": str(replicas),
    }
    return {"type": "cron", "metadata": metadata}


def _webhook(found: Recommendation, aim: Aim) -> Document:
    body = payload(found)
    return Document(
        found.service.name,
        aim.kind,
        f"webhook-{aim.name}.yaml",
        body,
        _yaml(body),
        replicas=found.target_replicas,
    )


def _notes(found: Recommendation) -> dict[str, str]:
    return {PLAN_ANNOTATION: rfc3339(found.made_at), REASON_ANNOTATION: found.reason.value}


def _yaml(body: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(body), sort_keys=False, allow_unicode=True)
