"""Deployments of services and their revisions, updated by the changes in the journal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from outrider.clock import from_unix
from simulator.cluster.pod import FIRST_REVISION
from simulator.exporters.kube_pods import replica_set
from simulator.journal import JournalEntry
from simulator.spec.parts import ServiceSpec

# Image and flags by engine; fields: model, parallel (tensor parallel size), sequences (max_num_seqs).
_ENGINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "vllm": (
        "vllm/vllm-openai:v0.32.0",
        ("--model=/models/{model}", "--tensor-parallel-size={parallel}", "--max-num-seqs={sequences}"),
    ),
    "sglang": (
        "lmsysorg/sglang:v0.5.9",
        ("--model-path=/models/{model}", "--tp-size={parallel}", "--max-running-requests={sequences}"),
    ),
    "tgi": (
        "ghcr.io/huggingface/text-generation-inference:3.3.6",
        ("--model-id=/models/{model}", "--num-shard={parallel}", "--max-concurrent-requests={sequences}"),
    ),
    "triton": ("nvcr.io/nvidia/tritonserver:25.09-trtllm-python-py3", ("--model-repository=/models/{model}",)),
    "mindie": ("ascendhub/mindie:2.1.0", ("--model=/models/{model}", "--world-size={parallel}")),
}


def instant(at: float) -> str:
    """Returns a ``metav1.Time``, in whole seconds."""
    return f"{from_unix(at):%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class Template:
    """Pod template of a service.

    ``version`` is the release, a label of every pod. ``name`` is the fleet's own name of the revision, which replica
    sets hash; a flag change alters it too.
    """

    version: str
    image: str
    args: tuple[str, ...]
    restarted_at: str = ""
    name: str = field(default="", compare=False)


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
    container: str
    revisions: tuple[Revision, ...]
    changed_at: float

    @property
    def current(self) -> Revision:
        """The current revision."""
        return self.revisions[-1]

    def replica_set(self, template: Template) -> str:
        """Returns the name of a template's replica set, as on the page of kube-state-metrics."""
        return replica_set(self.name, template.name)

    def hash(self, template: Template) -> str:
        """Returns the ``pod-template-hash`` of its pods."""
        return self.replica_set(template).rpartition("-")[2]

    def of(self, revision: str) -> Revision:
        """Returns the newest revision with that name; the current one if there is none."""
        named = (one for one in reversed(self.revisions) if one.template.name.partition("+")[0] == revision)
        return next(named, self.current)

    def take(self, template: Template, at: float) -> Workload:
        """Returns the workload with a new template. A reused template gets a new number and keeps its old ones."""
        number = self.current.number + 1
        known = next((revision for revision in self.revisions if revision.template == template), None)
        before = (*known.before, known.number) if known else ()
        latest = Revision(number, template, known.made_at if known else at, before)
        return replace(
            self, revisions=(*(revision for revision in self.revisions if revision is not known), latest), changed_at=at
        )


def first_workload(service: ServiceSpec, at: float) -> Workload:
    """Returns the initial workload of a service."""
    image, flags = _ENGINES.get(service.engine_kind, _ENGINES["vllm"])
    numbers = {
        "model": service.engine.model,
        "parallel": service.tensor_parallel,
        "sequences": service.engine.max_sequences,
    }
    arguments = tuple(flag.format(**numbers) for flag in flags)
    template = Template(FIRST_REVISION, image, arguments, name=FIRST_REVISION)
    return Workload(service.name, service.namespace, service.engine_kind, (Revision(1, template, at),), at)


def changed(workload: Workload, line: JournalEntry) -> Workload | None:
    """Returns the workload after a change of the journal; None if its Deployment does not show such a change.

    ``from`` and ``to`` of the line are versions, images or flags, by its code; ``revision`` is the fleet's name.
    """
    now, record = workload.current.template, line.attributes
    before, after = record.get("from", ""), record.get("to", "")
    name = record.get("revision", f"{now.name.partition('+')[0]}+{line.number}")
    if line.code == "rollout":
        version = after or record.get("revision") or f"{now.version}-{line.number}"
        arguments = (*(arg for arg in now.args if not arg.startswith("--revision=")), f"--revision={version}")
        return workload.take(replace(now, version=version, args=arguments, name=version), line.at)
    if line.code == "rollback":
        earlier = _earlier(workload, after or record.get("revision", ""))
        return None if earlier is None else workload.take(earlier, line.at)
    if line.code == "image":
        image = after or f"vllm/vllm-openai:build-{line.number}"
        return workload.take(replace(now, image=image, name=name), line.at)
    if line.code == "flags":
        other_args = tuple(arg for arg in now.args if arg != before)
        return workload.take(replace(now, args=(*other_args, after or f"--seed={line.number}"), name=name), line.at)
    if line.code == "restart":
        return workload.take(replace(now, restarted_at=instant(line.at), name=name), line.at)
    return None


def returned(workload: Workload, name: str, at: float) -> Workload:
    """Returns the workload after a rollback to revision ``name``; unchanged if it is already current."""
    earlier = None if workload.of(name) is workload.current else _earlier(workload, name, strict=True)
    return workload if earlier is None else workload.take(earlier, at)


def _earlier(workload: Workload, name: str, *, strict: bool = False) -> Template | None:
    others = [revision.template for revision in reversed(workload.revisions[:-1])]
    known = next((other for other in others if other.name == name), None)
    return known if known or strict or not others else others[0]
