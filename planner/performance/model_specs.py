"""Shape of a model: size of its weights and of its KV cache. Known models are in ``models.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from outrider.errors import UsageError
from outrider.text import yaml_file
from planner import packaged_data


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder. ``parameters`` in total, ``active`` for one token (fewer in a mixture of experts).

    ``latent`` is the number of values of a compressed KV entry of one layer (multi-head latent attention), 0 for keys
    and values of ``kv_heads`` heads. ``context`` is its maximum context length.
    """

    name: str
    parameters: float
    active: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    context: int
    latent: int = 0

    def __post_init__(self) -> None:
        """Refuses impossible shapes."""
        counts = (self.parameters, self.active, self.layers, self.hidden, self.heads, self.kv_heads, self.head_size)
        if min(counts) <= 0 or self.context <= 0 or self.latent < 0:
            raise UsageError(
                f"model {self.name!r} has a count of 0 or less",
                hint="read layers, heads and sizes from its config.json",
            )
        if self.active > self.parameters:
            raise UsageError(
                f"model {self.name!r} has more active than total parameters", hint="active are those used for one token"
            )

    def kv_values(self, tensor_parallel: int, layers: int) -> float:
        """Values of the KV cache of one token on one GPU.

        Heads are divided over the group, at least one each; every GPU keeps the whole latent.
        """
        if self.latent:
            return float(layers * self.latent)
        return 2.0 * layers * max(1, -(-self.kv_heads // tensor_parallel)) * self.head_size


@cache
def known() -> Mapping[str, ModelShape]:
    """The models that ship with the planner, by name."""
    return parse_models(packaged_data.models_yaml())


def parse_models(text: str) -> Mapping[str, ModelShape]:
    """The model shapes of a ``models.yaml``, by name."""
    document = yaml.safe_load(text)
    return {
        name: ModelShape(
            name=name,
            **{**row, "parameters": float(row["parameters"]), "active": float(row["active"])},
        )
        for name, row in document.items()
    }


def model(name: str) -> ModelShape:
    """Finds a known model; the organization before the slash and the case are ignored. Raises UsageError otherwise."""
    wanted = name.rsplit("/", 1)[-1].lower()
    for shape in known().values():
        if wanted == shape.name.lower() or wanted.startswith(shape.name.lower() + "-"):
            return shape
    raise UsageError(
        f"unknown model {name!r}{yaml_file.near(wanted, known())}",
        hint=f"give its config.json with --config-json, or one of: {', '.join(known())}",
    )


def of_config(document: Mapping[str, Any], *, name: str = "", parameters: float | None = None) -> ModelShape:
    """Reads a shape from a ``config.json`` of transformers.

    ``parameters`` are computed from the sizes if not given. Raises UsageError with the missing key.
    """
    inner = document.get("text_config")
    config = {**document, **inner} if isinstance(inner, Mapping) else dict(document)
    layers, hidden = _count(config, "num_hidden_layers"), _count(config, "hidden_size")
    heads = _count(config, "num_attention_heads")
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_size = int(config.get("head_dim") or hidden // heads)
    latent = 0
    if config.get("kv_lora_rank"):
        latent = int(config["kv_lora_rank"]) + int(config.get("qk_rope_head_dim") or 0)
    everything, active = _parameters(config, layers, hidden, heads, kv_heads, head_size)
    if parameters is not None:
        active, everything = active * parameters / everything, parameters
    return ModelShape(
        name=name or str(config.get("_name_or_path") or config.get("model_type") or "model"),
        parameters=everything,
        active=min(active, everything),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        context=int(config.get("max_position_embeddings") or 4096),
        latent=latent,
    )


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(
            f"config.json: {key} must be a whole number above 0, not {value!r}",
            hint="use the config.json of the model itself, as published",
        )
    return value


def _parameters(
    config: Mapping[str, Any], layers: int, hidden: int, heads: int, kv_heads: int, head_size: int
) -> tuple[float, float]:
    """Parameters in total and for one token: embeddings, attention, and dense or mixed feed-forward layers."""
    embeddings = float(config.get("vocab_size") or 0) * hidden * (1 if config.get("tie_word_embeddings") else 2)
    attention = 2.0 * hidden * head_size * (heads + kv_heads)
    if config.get("kv_lora_rank"):
        attention = _latent_attention(config, hidden, heads)
    wide = 3.0 * hidden * float(config.get("intermediate_size") or 4 * hidden)
    experts = int(config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts") or 0)
    if not experts:
        whole = embeddings + layers * (attention + wide)
        return whole, whole
    expert = 3.0 * hidden * float(config.get("moe_intermediate_size") or config.get("intermediate_size") or 4 * hidden)
    shared = expert * int(config.get("n_shared_experts") or 0)
    dense = int(config.get("first_k_dense_replace") or 0)
    used = int(config.get("num_experts_per_tok") or 1)
    fixed = embeddings + layers * attention + dense * wide + (layers - dense) * shared
    return fixed + (layers - dense) * experts * expert, fixed + (layers - dense) * used * expert


def _latent_attention(config: Mapping[str, Any], hidden: int, heads: int) -> float:
    """Multi-head latent attention as in DeepSeek-V2: low-rank queries, one latent for keys and values."""
    rank, rope = int(config["kv_lora_rank"]), int(config.get("qk_rope_head_dim") or 0)
    plain, value = int(config.get("qk_nope_head_dim") or 128), int(config.get("v_head_dim") or 128)
    query = int(config.get("q_lora_rank") or 0)
    wide = heads * (plain + rope)
    queries = float(query * (hidden + wide)) if query else float(hidden * wide)
    return queries + hidden * (rank + rope) + rank * heads * (plain + value) + heads * value * hidden
