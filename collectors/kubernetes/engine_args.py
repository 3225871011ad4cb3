"""What the command line and environment of a model server say: parallelism, lengths, batching, caches. Pure.

Flags are those of vLLM, SGLang, TGI, TensorRT-LLM (``trtllm-serve``), LMDeploy, Triton and MindIE as their own
references spell them. Nothing that is missing or odd in an object is an error.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from collectors.kubernetes.api import Json, items, mapping, text

ENGINES = {  # what the image or the command bears, the more telling first
    "sglang": ("sglang",),
    "tgi": ("text-generation-inference", "text-generation-launcher", "tgi-"),
    "tensorrt_llm": ("trtllm-serve", "tensorrt-llm", "tensorrt_llm"),
    "triton": ("tritonserver",),
    "mindie": ("mindie",),
    "lmdeploy": ("lmdeploy",),
    "vllm": ("vllm",),
}
TENSOR = ("--tensor-parallel-size", "-tp", "--tp-size", "--tp", "--tp_size", "--num-shard")
PIPELINE = ("--pipeline-parallel-size", "-pp", "--pp-size", "--pp", "--pp_size")
NODES = ("--nnodes",)
MAX_LENGTH = (
    "--max-model-len", "--context-length", "--max-total-tokens", "--max-length", "--max_seq_len", "--session-len",
)  # fmt: skip
BATCH = (
    "--max-num-seqs",
    "--max-running-requests",
    "--max-batch-size",
    "--max_batch_size",
    "--max-concurrent-requests",
)
DATA = ("--data-parallel-size", "-dp", "--dp-size", "--dp")
MODEL = ("--served-model-name", "--model", "--model-path", "--model-id")  # what requests and pages call it goes first
REVISION = ("--revision", "--tokenizer-revision", "--code-revision")
# vLLM says it in JSON, which a shell may have taken apart; SGLang by a flag
_ROLE = re.compile(r"kv_role\W+(kv_producer|kv_consumer)\b|--disaggregation-mode[= ](prefill|decode)\b")
_ROLES = {"prefill": "prefill", "decode": "decode", "kv_producer": "prefill", "kv_consumer": "decode"}
NO_PREFIX_CACHE = ("--no-enable-prefix-caching", "--disable-radix-cache", "--disable-prefix-caching")
NO_GRAPHS = ("--enforce-eager", "--disable-cuda-graph")
# the same said by the environment (TGI reads its flags from there)
_FROM_ENVIRONMENT = {
    "NUM_SHARD": "--num-shard",
    "MAX_TOTAL_TOKENS": "--max-total-tokens",
    "MAX_BATCH_SIZE": "--max-batch-size",
    "MODEL_ID": "--model-id",
    "REVISION": "--revision",
}
MOST_PARALLEL = 1024  # what is larger is no degree of parallelism
_OFF = frozenset({"false", "0", "no", "off"})
_ACCELERATOR = re.compile(r"^(?:nvidia\.com/(?:gpu(?:\.shared)?|mig-.+)|amd\.com/gpu|huawei\.com/.+|habana\.ai/gaudi|"
                          r"gpu\.intel\.com/.+|google\.com/tpu|aws\.amazon\.com/neuron.*)$")  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """One container's command line. ``flags`` maps a flag to its value, an empty text for a switch.

    ``role`` is ``prefill`` or ``decode`` where different engines do these; empty for one that does both.
    """

    engine: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    role: str = ""

    def value(self, *names: str) -> str:
        """What the first of these flags that is set says, empty when none is."""
        return next((self.flags[name] for name in names if name in self.flags), "")

    def number(self, *names: str) -> int | None:
        """The first of these flags that says a number; None when none does."""
        said = (self.flags[name] for name in names if name in self.flags)
        return next((int(one) for one in said if one.isascii() and one.isdigit() and len(one) < 10), None)

    def is_set(self, *names: str) -> bool:
        """True when one of these switches is on."""
        return any(name in self.flags and self.flags[name].lower() not in _OFF for name in names)

    @property
    def tensor_parallel(self) -> int:
        """GPUs that share each layer, 1 when nothing is said."""
        return self._degree(TENSOR) or 1

    @property
    def pipeline_parallel(self) -> int:
        """Stages of one replica, 1 when nothing is said."""
        return self._degree(PIPELINE) or 1

    @property
    def data_parallel(self) -> int:
        """Copies of the model behind one endpoint, 1 when nothing is said."""
        return self._degree(DATA) or 1

    @property
    def speaks(self) -> bool:
        """True when it is an engine's: it is known, or names a model or how that is split."""
        return bool(self.engine or self.model or self.is_set(*TENSOR, *PIPELINE))

    def facts(self, *, engine: bool) -> dict[str, str]:
        """Labels of what it serves. Of an ``engine`` what nothing is said of is 1; what cannot be read is left out."""
        found = {"engine": self.engine, "model": self.model, "role": self.role}
        for name, flags in (("tensor_parallel", TENSOR), ("pipeline_parallel", PIPELINE), ("data_parallel", DATA)):
            degree = self._degree(flags)
            if degree is None and engine and flags is not DATA and not self.is_set(*flags):
                degree = 1
            found[name] = str(degree or "")
        return {name: value for name, value in found.items() if value}

    def _degree(self, flags: tuple[str, ...]) -> int | None:
        said = (self.number(flag) for flag in flags if flag in self.flags)
        return next((one for one in said if one is not None and 0 < one <= MOST_PARALLEL), None)

    @property
    def prefix_cache_off(self) -> bool:
        """True when the engine is told to keep no prefixes."""
        said = self.flags.get("--enable-prefix-caching", "")
        return self.is_set(*NO_PREFIX_CACHE) or (said.lower() in _OFF - {""} and bool(said))

    @property
    def max_length_set(self) -> bool:
        """True when the longest request is bounded by a flag, not by the model's own limit."""
        return any(name in self.flags for name in MAX_LENGTH)


def engine_args(container: Json) -> EngineArgs:
    """The command line of a container, its ``sh -c`` unwrapped."""
    words = list(_words(container))
    environment = {text(one.get("name")): text(one.get("value")) for one in items(container.get("env"))}
    flags = dict(_flags(words))
    for name, flag in _FROM_ENVIRONMENT.items():
        if environment.get(name):
            flags.setdefault(flag, environment[name])
    told = " ".join((text(container.get("image")), *words)).lower()
    engine = next((name for name, marks in ENGINES.items() if any(mark in told for mark in marks)), "")
    model = next((flags[name] for name in MODEL if flags.get(name)), "") or _served(words)
    return EngineArgs(engine, flags, model.rstrip("/"), _role(told))


def _role(told: str) -> str:
    said = _ROLE.search(told)
    return "" if said is None else _ROLES[said.group(1) or said.group(2)]


def _words(container: Json) -> Iterator[str]:
    for part in ("command", "args"):
        value = container.get(part)
        for one in value if isinstance(value, list) else []:
            said = text(one)
            if not re.search(r"\s", said):
                yield said
                continue
            try:
                yield from shlex.split(said.replace("\\\n", " "), comments=True)
            except ValueError:
                yield from said.split()


def _flags(words: list[str]) -> Iterator[tuple[str, str]]:
    for place, word in enumerate(words):
        if not word.startswith("-") or word in ("-", "--", "-c", "-lc", "-m"):
            continue
        name, equals, value = word.partition("=")
        if not equals and place + 1 < len(words) and not words[place + 1].startswith("-"):
            value = words[place + 1]
        yield name, value


def _served(words: list[str]) -> str:
    """The model that ``vllm serve MODEL`` or ``trtllm-serve MODEL`` names without a flag."""
    for place, word in enumerate(words[:-1]):
        if word in ("serve", "trtllm-serve") and not words[place + 1].startswith("-"):
            after = words[place + 1]
            return words[place + 2] if after == "serve" and place + 2 < len(words) else after
    return ""


def accelerators(container: Json) -> dict[str, float]:
    """The accelerators a container asks for by resource name, MIG slices too."""
    resources = mapping(container.get("resources"))
    asked = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
    found = {name: _amount(value) for name, value in asked.items() if _ACCELERATOR.match(name)}
    return {name: amount for name, amount in found.items() if amount > 0}


def pod_accelerators(spec: Json) -> dict[str, float]:
    """The accelerators of all containers of a pod's spec."""
    total: dict[str, float] = {}
    for container in items(spec.get("containers")):
        for name, amount in accelerators(container).items():
            total[name] = total.get(name, 0.0) + amount
    return total


def serving_container(spec: Json) -> Json:
    """The container that serves the model: the one with accelerators, else the first with an engine's command."""
    offered = items(spec.get("containers"))
    with_gpu = next((one for one in offered if accelerators(one)), None)
    if with_gpu is not None:
        return with_gpu
    told = [(one, engine_args(one)) for one in offered]
    known = [one for one, args in told if args.engine]
    return next(iter([*known, *(one for one, args in told if args.speaks)]), {})


def _amount(value: object) -> float:
    try:
        return float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except ValueError:
        return 0.0
