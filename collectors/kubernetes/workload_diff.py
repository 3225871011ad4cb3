"""What changed between two states of a deployment: image, flags, replicas, or more at once.

Pure: objects of the API in, changes out. Nothing that is missing or odd in an object is an error.
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
    """What counts of a container. ``flags`` are command, arguments and environment, each as one text."""

    image: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """What counts of a workload. ``rest`` is everything else of its pods' template, as one text."""

    containers: Mapping[str, Container]
    version: str
    restarted: str
    rest: str
    replicas: int | None

    def same_template(self, other: Shape) -> bool:
        """True when the pods of both are made alike."""
        mine = (self.containers, self.version, self.restarted, self.rest)
        return mine == (other.containers, other.version, other.restarted, other.rest)


@dataclass(frozen=True, slots=True)
class Change:
    """One change and from what to what.

    Its code is rollout, rollback, image, flags, model-revision, restart, scale or configmap.
    """

    code: str
    before: str
    after: str


def shape_of(found: Json) -> Shape:
    """The shape of a deployment, stateful set or replica set."""
    spec = mapping(found.get("spec"))
    template = mapping(spec.get("template"))
    meta, pod = mapping(template.get("metadata")), mapping(template.get("spec"))
    labels, notes = texts(meta.get("labels")), texts(meta.get("annotations"))
    replicas = spec.get("replicas")
    kept = {
        "labels": {name: value for name, value in labels.items() if name not in _HASHES},
        "annotations": {name: value for name, value in notes.items() if name != RESTARTED},
        "spec": {name: value for name, value in pod.items() if name not in ("containers", "initContainers")},
        "containers": [_others(one) for one in _containers(pod)],
    }
    return Shape(
        containers={text(one.get("name")): _container(one) for one in _containers(pod)},
        version=next((labels[name] for name in VERSION_LABELS if labels.get(name)), ""),
        restarted=notes.get(RESTARTED, ""),
        rest=json.dumps(kept, sort_keys=True, default=str),
        replicas=replicas if isinstance(replicas, int) and not isinstance(replicas, bool) else None,
    )


def revision_of(found: Json) -> int:
    """The revision number of a deployment or replica set, 0 when it says none."""
    said = texts(mapping(found.get("metadata")).get("annotations")).get(REVISION, "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 12 else 0


def was_there_before(replicaset: Json) -> bool:
    """True for a replica set that had an earlier revision: going back to it is a rollback."""
    return bool(texts(mapping(replicaset.get("metadata")).get("annotations")).get(REVISION_HISTORY))


def template_change(before: Shape, after: Shape, *, back: bool = False, revisions: tuple[int, int] = (0, 0)) -> Change:
    """What was done to the template. One sort of change bears its name, several together are a rollout.

    ``back``: the pods are made again as they once were. ``revisions`` tell from and to what when nothing
    else does.
    """
    names = before.version, after.version
    if names[0] == names[1]:
        names = tuple(str(number) if number else "" for number in revisions)  # type: ignore[assignment]
    if back:
        return Change("rollback", *names)
    images = _pairs(before, after, lambda one: (one.image,))
    flags = _pairs(before, after, lambda one: one.flags)
    others = before.version != after.version or before.containers.keys() != after.containers.keys()
    if not others and before.rest == after.rest:
        if images and not flags and before.restarted == after.restarted:
            return Change("image", *_told(images))
        if flags and not images and before.restarted == after.restarted:
            code = "model-revision" if all(_names_a_model(pair) for pair in flags) else "flags"
            return Change(code, *_told(flags))
        if before.restarted != after.restarted and not images and not flags:
            return Change("restart", before.restarted, after.restarted)
    return Change("rollout", *names)


def scale_change(before: Shape, after: Shape) -> Change | None:
    """Another number of replicas was ordered."""
    if before.replicas is None or after.replicas is None or before.replicas == after.replicas:
        return None
    return Change("scale", str(before.replicas), str(after.replicas))


def _containers(pod: Json) -> list[Json]:
    return [*items(pod.get("initContainers")), *items(pod.get("containers"))]


def _container(found: Json) -> Container:
    said = [*_strings(found.get("command")), *_strings(found.get("args"))]
    for one in items(found.get("env")):
        value = one.get("value")
        shown = value if isinstance(value, str) else json.dumps(one.get("valueFrom"), sort_keys=True, default=str)
        said.append(f"{text(one.get('name'))}={shown}")
    return Container(text(found.get("image")), tuple(_hidden(said)))


def _hidden(said: list[str]) -> Iterator[str]:
    """Flags without the secrets that people write into them; a new secret still looks different."""
    follows = False
    for one in said:
        name, sign, value = one.partition("=")
        if follows and not one.startswith("-"):
            yield f"({_digest(one)})"
        elif sign and _SECRET.search(name):
            yield f"{name}=({_digest(value)})"
        else:
            yield one
        follows = one.startswith("-") and not sign and _SECRET.search(one) is not None


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", errors="surrogatepass")).hexdigest()[:8]


def _strings(value: Any) -> list[str]:
    return [text(one) for one in value] if isinstance(value, list) else []


def _others(found: Json) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in ("image", "command", "args", "env")}


def _pairs(before: Shape, after: Shape, part: Any) -> list[tuple[str, str]]:
    """What went and what came, container by container."""
    found = []
    for name, new in after.containers.items():
        old = before.containers.get(name)
        if old is None or part(old) == part(new):
            continue
        found.append((_only(part(old), part(new)), _only(part(new), part(old))))
    return found


def _names_a_model(pair: tuple[str, str]) -> bool:
    """True when all that went and came is which model, or which revision of it, is served."""
    return all(_MODEL.fullmatch(side.strip()) is not None for side in pair if side.strip())


def _only(one: Iterable[str], other: Iterable[str]) -> str:
    known = set(other)
    return " ".join(value for value in one if value not in known)


def _told(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for side in zip(*pairs, strict=True):
        yield " ".join(filter(None, side))[:_MOST_TEXT]
