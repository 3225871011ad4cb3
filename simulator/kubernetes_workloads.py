"""Deployments of services and their revisions, moved on by the changes that the journal tells."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from outrider.clock import from_unix
from simulator.journal import Happening


def instant(at: float) -> str:
    """A ``metav1.Time``: whole seconds."""
    return f"{from_unix(at):%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class Template:
    """What a service's pods are made of.

    ``version`` is the release, a label of every pod; ``name`` the fleet's own word for the revision, which
    no object shows and which a flag change alters too.
    """

    version: str
    image: str
    args: tuple[str, ...]
    restarted_at: str = ""
    name: str = field(default="", compare=False)

    @property
    def hash(self) -> str:
        """The pod-template-hash of its replica set."""
        letters = "bcdfghjklmnpqrstvwxz2456789"
        digest = hashlib.sha256("\n".join((self.version, self.image, self.restarted_at, *self.args)).encode()).digest()
        return "".join(letters[byte % len(letters)] for byte in digest[:10])


@dataclass(frozen=True, slots=True)
class Revision:
    """A template in use. ``number`` is its newest revision, ``before`` those it had earlier."""

    number: int
    template: Template
    made_at: float
    before: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """A service's deployment: its revisions, the newest last, and when its template last changed."""

    name: str
    namespace: str
    revisions: tuple[Revision, ...]
    changed_at: float

    @property
    def current(self) -> Revision:
        """The revision that is rolled out."""
        return self.revisions[-1]

    def take(self, template: Template, at: float) -> Workload:
        """Roll out a template. One that was used before gets a new number and remembers its old ones."""
        number = self.current.number + 1
        known = next((one for one in self.revisions if one.template == template), None)
        before = (*known.before, known.number) if known else ()
        made = Revision(number, template, known.made_at if known else at, before)
        return replace(self, revisions=(*(one for one in self.revisions if one is not known), made), changed_at=at)


def first_template(model: str, tensor_parallel: int, most_sequences: int, version: str) -> Template:
    """What a service starts with."""
    flags = (f"--tensor-parallel-size={tensor_parallel}", f"--max-num-seqs={most_sequences}")
    return Template(version, "vllm/vllm-openai:v0.32.0", (f"--model=/models/{model}", *flags), name=version)


def changed(workload: Workload, line: Happening) -> Workload | None:
    """The workload after a change that the journal tells; None when its deployment does not show such a one.

    ``from`` and ``to`` of the line are versions, images or flags, by its code; ``revision`` is the fleet's name.
    """
    now, told = workload.current.template, line.attributes
    before, after, name = told.get("from", ""), told.get("to", ""), told.get("revision", now.name)
    if line.code == "rollout":
        version = after or told.get("revision") or f"{now.version}-{line.number}"
        arguments = (*(arg for arg in now.args if not arg.startswith("--revision=")), f"--revision={version}")
        return workload.take(replace(now, version=version, args=arguments, name=version), line.at)
    if line.code == "rollback":
        earlier = _earlier(workload, after or told.get("revision", ""))
        return None if earlier is None else workload.take(earlier, line.at)
    if line.code == "image":
        image = after or f"vllm/vllm-openai:build-{line.number}"
        return workload.take(replace(now, image=image, name=name), line.at)
    if line.code == "flags":
        kept = tuple(arg for arg in now.args if arg != before)
        return workload.take(replace(now, args=(*kept, after or f"--seed={line.number}"), name=name), line.at)
    if line.code == "restart":
        return workload.take(replace(now, restarted_at=instant(line.at), name=name), line.at)
    return None


def returned(workload: Workload, name: str, at: float) -> Workload:
    """The workload once the fleet makes its pods of revision ``name`` again; itself when that is so already."""
    earlier = None if name == workload.current.template.name else _earlier(workload, name, strict=True)
    return workload if earlier is None else workload.take(earlier, at)


def _earlier(workload: Workload, name: str, *, strict: bool = False) -> Template | None:
    others = [one.template for one in reversed(workload.revisions[:-1])]
    known = next((one for one in others if one.name == name), None)
    return known if known or strict or not others else others[0]
