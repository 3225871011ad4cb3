"""Differences between two states of a workload: image, flags, replicas, or several at once.

Pure: objects of the API in, changes out. Missing or invalid parts of an object are not errors.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from collectors.kubernetes.api import Json, items, mapping, text, texts

REVISION = "deployment.kubernetes.io/revision"
REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
RESTARTED = "kubectl.kubernetes.io/restartedAt"
VERSION_LABELS = ("app.kubernetes.io/version", "version", "model-version", "revision")
_HASHES = frozenset({"pod-template-hash", "controller-revision-hash"})
_MOST_TEXT = 400
_MODEL = re.compile(
    r"(?:(?:--model|--model-path|--model-id|--revision|--tokenizer-revision|--code-revision|--storage-uri"
    r"|MODEL_ID|MODEL_NAME|REVISION|STORAGE_URI)=\S+\s*)+"
)
_SECRET = re.compile(r"(?i)(?:api|access|secret|private)[-_]?key|token(?!iz|s)|secret|passw|credential")


@dataclass(frozen=True, slots=True)
class Container:
    """Compared parts of a container. ``flags`` are command, arguments and environment, each as one text."""

    image: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """Compared parts of a workload. ``rest`` is everything else of its pod template, as one text."""

    containers: Mapping[str, Container]
    version: str
    restarted: str
    rest: str
    replicas: int | None

    def same_template(self, other: WorkloadShape) -> bool:
        """True if the pod templates are equal."""
        mine = (self.containers, self.version, self.restarted, self.rest)
        return mine == (other.containers, other.version, other.restarted, other.rest)


@dataclass(frozen=True, slots=True)
class WorkloadChange:
    """One change with its old and new value.

    Its code is rollout, rollback, image, flags, model-revision, restart, scale or configmap.
    """

    code: str
    before: str
    after: str


def shape_of(workload: Json) -> WorkloadShape:
    """The shape of a deployment, stateful set or replica set."""
    spec = mapping(workload.get("spec"))
    template = mapping(spec.get("template"))
    meta, pod = mapping(template.get("metadata")), mapping(template.get("spec"))
    labels, notes = texts(meta.get("labels")), texts(meta.get("annotations"))
    replicas = spec.get("replicas")
    other_parts = {
        "labels": {name: value for name, value in labels.items() if name not in _HASHES},
        "annotations": {name: value for name, value in notes.items() if name != RESTARTED},
        "spec": {name: value for name, value in pod.items() if name not in ("containers", "initContainers")},
        "containers": [_others(container) for container in _containers(pod)],
    }
    return WorkloadShape(
        containers={text(container.get("name")): _container(container) for container in _containers(pod)},
        version=next((labels[name] for name in VERSION_LABELS if labels.get(name)), ""),
        restarted=notes.get(RESTARTED, ""),
        rest=json.dumps(other_parts, sort_keys=True, default=str),
        replicas=replicas if isinstance(replicas, int) and not isinstance(replicas, bool) else None,
    )


def revision_of(workload: Json) -> int:
    """Revision number of a deployment or replica set, 0 without one."""
    annotation = texts(mapping(workload.get("metadata")).get("annotations")).get(REVISION, "")
    return int(annotation) if annotation.isascii() and annotation.isdigit() and len(annotation) < 12 else 0


def had_earlier_revision(replicaset: Json) -> bool:
    """True for a replica set that had an earlier revision: returning to it is a rollback."""
    return bool(texts(mapping(replicaset.get("metadata")).get("annotations")).get(REVISION_HISTORY))


def template_change(
    before: WorkloadShape, after: WorkloadShape, *, back: bool = False, revisions: tuple[int, int] = (0, 0)
) -> WorkloadChange:
    """Change of the template. A single kind of change has its own code, several together are a rollout.

    ``back``: the template returned to an earlier one. ``revisions`` give the old and new value if nothing else
    does.
    """
    names = before.version, after.version
    if names[0] == names[1]:
        names = tuple(str(number) if number else "" for number in revisions)  # type: ignore[assignment]
    if back:
        return WorkloadChange("rollback", *names)
    images = _pairs(before, after, lambda container: (container.image,))
    flags = _pairs(before, after, lambda container: container.flags)
    others = before.version != after.version or before.containers.keys() != after.containers.keys()
    if not others and before.rest == after.rest:
        if images and not flags and before.restarted == after.restarted:
            return WorkloadChange("image", *_joined(images))
        if flags and not images and before.restarted == after.restarted:
            code = "model-revision" if all(_names_a_model(pair) for pair in flags) else "flags"
            return WorkloadChange(code, *_joined(flags))
        if before.restarted != after.restarted and not images and not flags:
            return WorkloadChange("restart", before.restarted, after.restarted)
    return WorkloadChange("rollout", *names)


def scale_change(before: WorkloadShape, after: WorkloadShape) -> WorkloadChange | None:
    """Change of the desired number of replicas."""
    if before.replicas is None or after.replicas is None or before.replicas == after.replicas:
        return None
    return WorkloadChange("scale", str(before.replicas), str(after.replicas))


def _containers(pod: Json) -> list[Json]:
    return [*items(pod.get("initContainers")), *items(pod.get("containers"))]


def _container(container: Json) -> Container:
    settings = [*_strings(container.get("command")), *_strings(container.get("args"))]
    for variable in items(container.get("env")):
        value = variable.get("value")
        value_text = (
            value if isinstance(value, str) else json.dumps(variable.get("valueFrom"), sort_keys=True, default=str)
        )
        settings.append(f"{text(variable.get('name'))}={value_text}")
    return Container(text(container.get("image")), tuple(_hidden(settings)))


def _hidden(settings: list[str]) -> Iterator[str]:
    """Flags without secrets; a changed secret still differs."""
    follows = False
    for setting in settings:
        name, sign, value = setting.partition("=")
        if follows and not setting.startswith("-"):
            yield f"({_digest(setting)})"
        elif sign and _SECRET.search(name):
            yield f"{name}=({_digest(value)})"
        else:
            yield setting
        follows = setting.startswith("-") and not sign and _SECRET.search(setting) is not None


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", errors="surrogatepass")).hexdigest()[:8]


def _strings(value: Any) -> list[str]:
    return [text(item) for item in value] if isinstance(value, list) else []


def _others(container: Json) -> dict[str, Any]:
    return {name: value for name, value in container.items() if name not in ("image", "command", "args", "env")}


def _pairs(before: WorkloadShape, after: WorkloadShape, part: Any) -> list[tuple[str, str]]:
    """Removed and added parts, container by container."""
    pairs = []
    for name, new in after.containers.items():
        old = before.containers.get(name)
        if old is None or part(old) == part(new):
            continue
        pairs.append((_only(part(old), part(new)), _only(part(new), part(old))))
    return pairs


def _names_a_model(pair: tuple[str, str]) -> bool:
    """True if only the served model, or its revision, changed."""
    return all(_MODEL.fullmatch(side.strip()) is not None for side in pair if side.strip())


def _only(values: Iterable[str], other: Iterable[str]) -> str:
    excluded = set(other)
    return " ".join(value for value in values if value not in excluded)


def _joined(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for side in zip(*pairs, strict=True):
        yield " ".join(filter(None, side))[:_MOST_TEXT]
