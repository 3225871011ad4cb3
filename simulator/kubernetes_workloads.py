"""Deployments of services and their revisions, moved on by the changes that the journal tells."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from outrider.clock import from_unix
from simulator.journal import Happening


def instant(at: float) -> str:
    """A ``metav1.Time``: whole seconds."""
    return f"{from_unix(at):%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class Template:
    """What a service's pods are made of. ``version`` is the model's, a label of every pod."""

    version: str
    image: str
    args: tuple[str, ...]
    restarted_at: str = ""

    @property
    def hash(self) -> str:
        """The pod-template-hash of its replica set."""
        letters = "bcdfghjklmnpqrstvwxz2456789"
        digest = hashlib.sha256(repr(self).encode()).digest()
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
    return Template(
        version,
        "vllm/vllm-openai:v0.32.0",
        (f"--model=/models/{model}", f"--tensor-parallel-size={tensor_parallel}", f"--max-num-seqs={most_sequences}"),
    )


def changed(workload: Workload, line: Happening) -> Workload | None:
    """The workload after a change that the journal tells; None when its deployment does not show such a one."""
    now, told = workload.current.template, line.attributes
    before, after = told.get("from", ""), told.get("to", "")
    if line.code == "rollout":
        version = after or f"{now.version}-{line.number}"
        arguments = (*(arg for arg in now.args if not arg.startswith("--revision=")), f"--revision={version}")
        return workload.take(replace(now, version=version, args=arguments), line.at)
    if line.code == "rollback":
        return workload.take(_earlier(workload, after), line.at) if len(workload.revisions) > 1 else None
    if line.code == "image":
        return workload.take(replace(now, image=after or f"vllm/vllm-openai:build-{line.number}"), line.at)
    if line.code == "flags":
        kept = tuple(arg for arg in now.args if arg != before)
        return workload.take(replace(now, args=(*kept, after or f"--seed={line.number}")), line.at)
    if line.code == "restart":
        return workload.take(replace(now, restarted_at=instant(line.at)), line.at)
    return None


def _earlier(workload: Workload, version: str) -> Template:
    others = [one.template for one in reversed(workload.revisions[:-1])]
    return next((one for one in others if one.version == version), others[0])
