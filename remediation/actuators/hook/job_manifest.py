"""The Job of a hook: a template bound to a node, with a name that follows from the action."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from importlib import resources
from typing import Any, Literal

from outrider.model import Action, ActionKind
from outrider.text import yaml_file
from remediation.actuators.hook.actuator import gpus_of, node_of
from remediation.actuators.hook.diagnostic import PEER_RATIO
from remediation.actuators.kubernetes.nodes import TAINT
from remediation.actuators.kubernetes.ownership import label_value, marks

HOOK, ACTION_LABEL, BOOT = "outrider.io/hook", "outrider.io/action-id", "outrider.io/boot-id"
PackagedCheck = Literal["dcgm", "driver", "bandwidth", "generation"]
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_FILES = {ActionKind.RESET_GPU: "reset_gpu", ActionKind.REBOOT_NODE: "reboot_node"}


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Settings of a Job hook. ``template`` is a Job manifest; ``image`` and ``limits`` replace those of containers.

    ``level`` is that of ``dcgmi diag``; ``keeps`` is the life of a finished Job, whose report its peers compare with.
    """

    template: Mapping[str, Any]
    namespace: str = "outrider"
    image: str = ""
    runtime_class: str = ""
    limits: Mapping[str, str] = field(default_factory=dict)
    level: int = 1
    deadline: timedelta = timedelta(minutes=15)
    keeps: timedelta = timedelta(hours=24)
    peer_ratio: float = PEER_RATIO


@cache
def packaged(kind: ActionKind, check: PackagedCheck = "dcgm") -> Mapping[str, Any]:
    """Returns the Job manifest that ships with Outrider."""
    name = f"{_FILES.get(kind, check)}.yaml"
    text = resources.files("remediation.actuators.hook").joinpath("jobs", name).read_text(encoding="utf-8")
    result: Mapping[str, Any] = yaml_file.parse(text, f"remediation/actuators/hook/jobs/{name}").value
    return result


def template_problems(document: yaml_file.Document) -> list[tuple[yaml_file.Path_, str]]:
    """Returns what is wrong with an operator's template, by key."""
    value = document.value
    if not isinstance(value, dict) or value.get("kind") != "Job" or value.get("apiVersion") != "batch/v1":
        return [(("kind",), "expected a Job of batch/v1")]
    node: Any = value
    for key in ("spec", "template", "spec", "containers"):
        node = node.get(key) if isinstance(node, dict) else None
    if not isinstance(node, list) or not node or not all(isinstance(entry, dict) for entry in node):
        return [(("spec",), "expected spec.template.spec.containers with one container or more")]
    return [
        (("spec", "template", "spec", "containers", index, "image"), "is required, here or as the setting image")
        for index, entry in enumerate(node)
        if not entry.get("image")
    ]


def job_name(action: Action) -> str:
    """Returns the name of the action's Job: the same action has the same Job."""
    digest = hashlib.sha256(action.id.encode()).hexdigest()[:16]
    return f"outrider-{action.kind.value.replace('_', '-')}-{digest}"


def manifest(action: Action, options: JobOptions, boot_id: str = "") -> dict[str, Any]:
    """Returns the Job of an action, bound to its node. ``boot_id`` is that of the node before a reboot."""
    job: dict[str, Any] = copy.deepcopy(dict(options.template))
    ours = marks(action)
    labels = {**ours["labels"], HOOK: label_value(action.kind.value), ACTION_LABEL: label_value(action.id)}
    notes = {**ours["annotations"], **({BOOT: boot_id} if boot_id else {})}
    meta = job.get("metadata") or {}
    job["metadata"] = {
        "name": job_name(action),
        "namespace": options.namespace,
        "labels": {**(meta.get("labels") or {}), **labels},
        "annotations": {**(meta.get("annotations") or {}), **notes},
    }
    spec = job["spec"]
    spec.setdefault("backoffLimit", 0)
    spec.setdefault("activeDeadlineSeconds", int(options.deadline.total_seconds()))
    spec.setdefault("ttlSecondsAfterFinished", int(options.keeps.total_seconds()))
    template = spec["template"]
    inner = template.get("metadata") or {}
    template["metadata"] = {**inner, "labels": {**(inner.get("labels") or {}), **labels}}
    _bind(template["spec"], action, options)
    return job


def _bind(pod: dict[str, Any], action: Action, options: JobOptions) -> None:
    """Binds a pod to the action's node, and passes its task to the containers."""
    pod.setdefault("restartPolicy", "Never")
    if options.runtime_class:
        pod.setdefault("runtimeClassName", options.runtime_class)
    on_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_of(action)]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [on_node]}}
    pod["affinity"] = {**(pod.get("affinity") or {}), "nodeAffinity": required}
    ours = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in (TAINT, _UNSCHEDULABLE)]
    pod["tolerations"] = [*(pod.get("tolerations") or []), *ours]
    variables = _variables(action, options)
    for container in pod["containers"]:
        own = [entry for entry in container.get("env") or [] if entry.get("name") not in variables]
        container["env"] = [*own, *({"name": name, "value": value} for name, value in variables.items())]
        if options.image:
            container["image"] = options.image
        if options.limits:
            container["resources"] = {**(container.get("resources") or {}), "limits": dict(options.limits)}


def _variables(action: Action, options: JobOptions) -> dict[str, str]:
    endpoints = action.params.get("endpoints") or ()
    return {
        "OUTRIDER_ACTION": action.id,
        "OUTRIDER_NODE": node_of(action),
        "OUTRIDER_GPUS": ",".join(gpus_of(action)),
        "OUTRIDER_ENDPOINTS": " ".join(str(endpoint) for endpoint in endpoints),
        "OUTRIDER_LEVEL": str(options.level),
    }
