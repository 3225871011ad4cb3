"""Workloads of every sort as one shape: a pod template and a number of replicas. Pure.

A LeaderWorkerSet has two templates, a KServe inference service describes its model, a Ray service the templates of
its groups and the application it serves: each is turned into what ``workload_changes`` compares.
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
from collectors.kubernetes.pods import KSERVE, LWS_NAME, RAY_CRD, RAY_SERVICE, service_said


def templated(resource: Resource, found: Json) -> Json:
    """The workload with ``spec.template`` and ``spec.replicas``, whatever its own sort spells."""
    spec, name = mapping(found.get("spec")), key_of(found)[1]
    if resource is LEADER_WORKER_SETS:
        group = mapping(spec.get("leaderWorkerTemplate"))
        parts = [("leader", mapping(group.get("leaderTemplate"))), ("worker", mapping(group.get("workerTemplate")))]
        template = _merged([(role, part) for role, part in parts if part])
        template["size"] = group.get("size")
        template["metadata"]["labels"][LWS_NAME] = name  # as their operators label pods
        return {**found, "spec": {"replicas": spec.get("replicas"), "template": template}}
    if resource is INFERENCE_SERVICES:
        predictor = mapping(spec.get("predictor"))
        model = mapping(predictor.get("model"))
        own = {"name": "model", **{part: model.get(part) for part in ("image", "args", "command", "env", "resources")}}
        own["args"] = [*_list(model.get("args")), f"--storage-uri={text(model.get('storageUri'))}"]
        own["image"] = text(model.get("image")) or f"{text(model.get('runtime'))}:{text(model.get('runtimeVersion'))}"
        pod = {"containers": [own] if model else [], "others": _without(predictor, "model", "containers")}
        pod["containers"] = [*pod["containers"], *items(predictor.get("containers"))]
        template = {"metadata": {"labels": {**labels_of(found), KSERVE: name}}, "spec": pod}
        return {**found, "spec": {"replicas": predictor.get("minReplicas"), "template": template}}
    if resource is RAY_SERVICES:
        cluster = mapping(spec.get("rayClusterConfig"))
        groups = [("head", mapping(mapping(cluster.get("headGroupSpec")).get("template")))]
        groups += [
            (text(one.get("groupName")), mapping(one.get("template"))) for one in items(cluster.get("workerGroupSpecs"))
        ]
        template = _merged(groups)
        template["serve"] = spec.get("serveConfigV2")
        template["metadata"]["labels"] |= {RAY_SERVICE: name, RAY_CRD: "RayService"}
        replicas = [one.get("replicas") for one in items(cluster.get("workerGroupSpecs"))]
        count = sum(one for one in replicas if isinstance(one, int) and not isinstance(one, bool))
        return {**found, "spec": {"replicas": count if replicas else None, "template": template}}
    return found


def service_of(found: Json, service_label: str) -> str:
    """The service a workload runs, by the labels of its pods, else by its own; empty when neither say."""
    template = mapping(mapping(found.get("spec")).get("template"))
    for meta in (mapping(template.get("metadata")), mapping(found.get("metadata"))):
        said = service_said(texts(meta.get("labels")), texts(meta.get("annotations")), service_label)
        if said:
            return said
    return ""


def config_maps(found: Json) -> frozenset[str]:
    """The names of the ConfigMaps that the pods of a workload read: volumes, ``envFrom`` and single variables."""
    pod = mapping(mapping(mapping(found.get("spec")).get("template")).get("spec"))
    return frozenset(name for name in _config_maps(pod) if name)


def _config_maps(pod: Json) -> Iterator[str]:
    for volume in items(pod.get("volumes")):
        yield text(mapping(volume.get("configMap")).get("name"))
        for source in items(mapping(volume.get("projected")).get("sources")):
            yield text(mapping(source.get("configMap")).get("name"))
    for container in (*items(pod.get("initContainers")), *items(pod.get("containers"))):
        for one in items(container.get("envFrom")):
            yield text(mapping(one.get("configMapRef")).get("name"))
        for one in items(container.get("env")):
            yield text(mapping(mapping(one.get("valueFrom")).get("configMapKeyRef")).get("name"))


def _merged(groups: list[tuple[str, Json]]) -> dict[str, Any]:
    """One template of several: containers bear the name of their group, labels are those of all."""
    labels: dict[str, str] = {}
    containers: list[Json] = []
    volumes: list[Json] = []
    others: dict[str, Any] = {}
    for name, template in groups:
        pod = mapping(template.get("spec"))
        labels.update(texts(mapping(template.get("metadata")).get("labels")))
        made = (*items(pod.get("initContainers")), *items(pod.get("containers")))
        containers += [{**one, "name": f"{name}/{text(one.get('name'))}"} for one in made]
        volumes += items(pod.get("volumes"))
        others[name] = _without(pod, "containers", "initContainers", "volumes")
    return {"metadata": {"labels": labels}, "spec": {"containers": containers, "volumes": volumes, "others": others}}


def _without(found: Json, *names: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in names}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
