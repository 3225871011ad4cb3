"""All workload types in one form: a pod template and a number of replicas. Pure.

A LeaderWorkerSet has two templates, a KServe inference service describes its model, a Ray service the templates of
its groups and its application. Each is converted to the form that ``workload_diff`` compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from collectors.kubernetes.api import Json, items, mapping, text, texts
from collectors.kubernetes.objects import (
    INFERENCE_SERVICES,
    LEADER_WORKER_SETS,
    RAY_SERVICES,
    Resource,
    key_of,
    labels_of,
)
from collectors.kubernetes.pods import KSERVE, LWS_NAME, RAY_CRD, RAY_SERVICE, labeled_service


def templated(resource: Resource, document: Json) -> Json:
    """The workload with ``spec.template`` and ``spec.replicas``, independent of its own type."""
    spec, name = mapping(document.get("spec")), key_of(document)[1]
    if resource is LEADER_WORKER_SETS:
        group = mapping(spec.get("leaderWorkerTemplate"))
        parts = [("leader", mapping(group.get("leaderTemplate"))), ("worker", mapping(group.get("workerTemplate")))]
        template = _merged([(role, part) for role, part in parts if part])
        template["size"] = group.get("size")
        template["metadata"]["labels"][LWS_NAME] = name  # as labeled by its operator
        return {**document, "spec": {"replicas": spec.get("replicas"), "template": template}}
    if resource is INFERENCE_SERVICES:
        predictor = mapping(spec.get("predictor"))
        model = mapping(predictor.get("model"))
        own = {"name": "model", **{part: model.get(part) for part in ("image", "args", "command", "env", "resources")}}
        own["args"] = [*_list(model.get("args")), f"--storage-uri={text(model.get('storageUri'))}"]
        own["image"] = text(model.get("image")) or f"{text(model.get('runtime'))}:{text(model.get('runtimeVersion'))}"
        pod = {"containers": [own] if model else [], "others": _without(predictor, "model", "containers")}
        pod["containers"] = [*pod["containers"], *items(predictor.get("containers"))]
        template = {"metadata": {"labels": {**labels_of(document), KSERVE: name}}, "spec": pod}
        return {**document, "spec": {"replicas": predictor.get("minReplicas"), "template": template}}
    if resource is RAY_SERVICES:
        cluster = mapping(spec.get("rayClusterConfig"))
        groups = [("head", mapping(mapping(cluster.get("headGroupSpec")).get("template")))]
        groups += [
            (text(group.get("groupName")), mapping(group.get("template")))
            for group in items(cluster.get("workerGroupSpecs"))
        ]
        template = _merged(groups)
        template["serve"] = spec.get("serveConfigV2")
        template["metadata"]["labels"] |= {RAY_SERVICE: name, RAY_CRD: "RayService"}
        replicas = [group.get("replicas") for group in items(cluster.get("workerGroupSpecs"))]
        count = sum(group for group in replicas if isinstance(group, int) and not isinstance(group, bool))
        return {**document, "spec": {"replicas": count if replicas else None, "template": template}}
    return document


def service_of(document: Json, service_label: str) -> str:
    """Service of a workload, by the labels of its pods, else its own; empty without either."""
    template = mapping(mapping(document.get("spec")).get("template"))
    for meta in (mapping(template.get("metadata")), mapping(document.get("metadata"))):
        service = labeled_service(texts(meta.get("labels")), texts(meta.get("annotations")), service_label)
        if service:
            return service
    return ""


def config_maps(document: Json) -> frozenset[str]:
    """Names of the ConfigMaps read by the pods of a workload: volumes, ``envFrom`` and single variables."""
    pod = mapping(mapping(mapping(document.get("spec")).get("template")).get("spec"))
    return frozenset(name for name in _config_maps(pod) if name)


def _config_maps(pod: Json) -> Iterator[str]:
    for volume in items(pod.get("volumes")):
        yield text(mapping(volume.get("configMap")).get("name"))
        for source in items(mapping(volume.get("projected")).get("sources")):
            yield text(mapping(source.get("configMap")).get("name"))
    for container in (*items(pod.get("initContainers")), *items(pod.get("containers"))):
        for entry in items(container.get("envFrom")):
            yield text(mapping(entry.get("configMapRef")).get("name"))
        for entry in items(container.get("env")):
            yield text(mapping(mapping(entry.get("valueFrom")).get("configMapKeyRef")).get("name"))


def _merged(groups: list[tuple[str, Json]]) -> dict[str, Any]:
    """Merges templates: container names are prefixed by their group, labels are united."""
    labels: dict[str, str] = {}
    containers: list[Json] = []
    volumes: list[Json] = []
    others: dict[str, Any] = {}
    for name, template in groups:
        pod = mapping(template.get("spec"))
        labels.update(texts(mapping(template.get("metadata")).get("labels")))
        parts = (*items(pod.get("initContainers")), *items(pod.get("containers")))
        containers += [{**part, "name": f"{name}/{text(part.get('name'))}"} for part in parts]
        volumes += items(pod.get("volumes"))
        others[name] = _without(pod, "containers", "initContainers", "volumes")
    return {"metadata": {"labels": labels}, "spec": {"containers": containers, "volumes": volumes, "others": others}}


def _without(document: Json, *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
