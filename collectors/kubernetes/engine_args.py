"""Settings of a model server from its command line and environment: parallelism, lengths, batching, caches. Pure.

Flags are those of vLLM, SGLang, TGI, TensorRT-LLM (``trtllm-serve``), LMDeploy, Triton and MindIE, as in their own
references. Missing or invalid parts of an object are not errors.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from collectors.kubernetes.api import Json, items, mapping, text

ENGINES = {  # marks in the image or the command, most specific first
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
MODEL = ("--served-model-name", "--model", "--model-path", "--model-id")  # the name used in requests and metrics first
REVISION = ("--revision", "--tokenizer-revision", "--code-revision")
# vLLM uses JSON, which a shell may have split; SGLang a flag
_ROLE = re.compile(r"kv_role\W+(kv_producer|kv_consumer)\b|--disaggregation-mode[= ](prefill|decode)\b")
_ROLES = {"prefill": "prefill", "decode": "decode", "kv_producer": "prefill", "kv_consumer": "decode"}
NO_PREFIX_CACHE = ("--no-enable-prefix-caching", "--disable-radix-cache", "--disable-prefix-caching")
NO_GRAPHS = ("--enforce-eager", "--disable-cuda-graph")
# the same in the environment (TGI reads its flags from there)
_FROM_ENVIRONMENT = {
    "NUM_SHARD": "--num-shard",
    "MAX_TOTAL_TOKENS": "--max-total-tokens",
    "MAX_BATCH_SIZE": "--max-batch-size",
    "MODEL_ID": "--model-id",
    "REVISION": "--revision",
}
MAX_PARALLEL = 1024  # larger numbers are not a degree of parallelism
_OFF = frozenset({"false", "0", "no", "off"})
_ACCELERATOR = re.compile(r"^(?:nvidia\.com/(?:gpu(?:\.shared)?|mig-.+)|amd\.com/gpu|huawei\.com/.+|habana\.ai/gaudi|"
                          r"gpu\.intel\.com/.+|google\.com/tpu|aws\.amazon\.com/neuron.*)$")  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """One container's command line. ``flags`` maps a flag to its value, empty for a switch.

    ``role`` is ``prefill`` or ``decode`` if different engines do these; empty for one that does both.
    """

    engine: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    role: str = ""

    def value(self, *names: str) -> str:
        """Value of the first of these flags that is set, empty if none is."""
        return next((self.flags[name] for name in names if name in self.flags), "")

    def number(self, *names: str) -> int | None:
        """The first of these flags with a number; None if there is none."""
        values = (self.flags[name] for name in names if name in self.flags)
        return next((int(value) for value in values if value.isascii() and value.isdigit() and len(value) < 10), None)

    def is_set(self, *names: str) -> bool:
        """True if one of these switches is on."""
        return any(name in self.flags and self.flags[name].lower() not in _OFF for name in names)

    @property
    def tensor_parallel(self) -> int:
        """Number of GPUs that share each layer; default 1."""
        return self._degree(TENSOR) or 1

    @property
    def pipeline_parallel(self) -> int:
        """Number of pipeline stages of one replica; default 1."""
        return self._degree(PIPELINE) or 1

    @property
    def data_parallel(self) -> int:
        """Number of model copies behind one endpoint; default 1."""
        return self._degree(DATA) or 1

    @property
    def is_engine_command(self) -> bool:
        """True for an engine's command: it is known, or names a model or its parallelism."""
        return bool(self.engine or self.model or self.is_set(*TENSOR, *PIPELINE))

    def facts(self, *, engine: bool) -> dict[str, str]:
        """Labels of the served model. For an ``engine``, unset degrees are 1; unreadable ones are omitted."""
        facts = {"engine": self.engine, "model": self.model, "role": self.role}
        for name, flags in (("tensor_parallel", TENSOR), ("pipeline_parallel", PIPELINE), ("data_parallel", DATA)):
            degree = self._degree(flags)
            if degree is None and engine and flags is not DATA and not self.is_set(*flags):
                degree = 1
            facts[name] = str(degree or "")
        return {name: value for name, value in facts.items() if value}

    def _degree(self, flags: tuple[str, ...]) -> int | None:
        values = (self.number(flag) for flag in flags if flag in self.flags)
        return next((value for value in values if value is not None and 0 < value <= MAX_PARALLEL), None)

    @property
    def prefix_cache_off(self) -> bool:
        """True if the prefix cache is disabled."""
        setting = self.flags.get("--enable-prefix-caching", "")
        return self.is_set(*NO_PREFIX_CACHE) or (setting.lower() in _OFF - {""} and bool(setting))

    @property
    def max_length_set(self) -> bool:
        """True if a flag, not the model's own limit, bounds the request length."""
        return any(name in self.flags for name in MAX_LENGTH)


def engine_args(container: Json) -> EngineArgs:
    """Command line of a container, with ``sh -c`` unwrapped."""
    words = list(_words(container))
    environment = {text(variable.get("name")): text(variable.get("value")) for variable in items(container.get("env"))}
    flags = dict(_flags(words))
    for name, flag in _FROM_ENVIRONMENT.items():
        if environment.get(name):
            flags.setdefault(flag, environment[name])
    command = " ".join((text(container.get("image")), *words)).lower()
    engine = next((name for name, marks in ENGINES.items() if any(mark in command for mark in marks)), "")
    model = next((flags[name] for name in MODEL if flags.get(name)), "") or _served(words)
    return EngineArgs(engine, flags, model.rstrip("/"), _role(command))


def _role(command: str) -> str:
    match = _ROLE.search(command)
    return "" if match is None else _ROLES[match.group(1) or match.group(2)]


def _words(container: Json) -> Iterator[str]:
    for part in ("command", "args"):
        value = container.get(part)
        for item in value if isinstance(value, list) else []:
            word = text(item)
            if not re.search(r"\s", word):
                yield word
                continue
            try:
                yield from shlex.split(word.replace("\\\n", " "), comments=True)
            except ValueError:
                yield from word.split()


def _flags(words: list[str]) -> Iterator[tuple[str, str]]:
    for index, word in enumerate(words):
        if not word.startswith("-") or word in ("-", "--", "-c", "-lc", "-m"):
            continue
        name, equals, value = word.partition("=")
        if not equals and index + 1 < len(words) and not words[index + 1].startswith("-"):
            value = words[index + 1]
        yield name, value


def _served(words: list[str]) -> str:
    """The positional model of ``vllm serve MODEL`` or ``trtllm-serve MODEL``."""
    for index, word in enumerate(words[:-1]):
        if word in ("serve", "trtllm-serve") and not words[index + 1].startswith("-"):
            after = words[index + 1]
            return words[index + 2] if after == "serve" and index + 2 < len(words) else after
    return ""


def accelerators(container: Json) -> dict[str, float]:
    """Accelerators requested by a container, by resource name, including MIG slices."""
    resources = mapping(container.get("resources"))
    requested = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
    amounts = {name: _amount(value) for name, value in requested.items() if _ACCELERATOR.match(name)}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def pod_accelerators(spec: Json) -> dict[str, float]:
    """Accelerators of all containers of a pod's spec."""
    total: dict[str, float] = {}
    for container in items(spec.get("containers")):
        for name, amount in accelerators(container).items():
            total[name] = total.get(name, 0.0) + amount
    return total


def serving_container(spec: Json) -> Json:
    """The container that serves the model: the one with accelerators, else the first with an engine's command."""
    offered = items(spec.get("containers"))
    with_gpu = next((container for container in offered if accelerators(container)), None)
    if with_gpu is not None:
        return with_gpu
    parsed = [(container, engine_args(container)) for container in offered]
    engines = [container for container, args in parsed if args.engine]
    return next(iter([*engines, *(container for container, args in parsed if args.is_engine_command)]), {})


def _amount(value: object) -> float:
    try:
        return float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except ValueError:
        return 0.0
