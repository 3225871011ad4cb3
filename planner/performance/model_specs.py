"""The shape of a model: what its weights and its KV cache take. Known ones stand in ``models.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from outrider.errors import UsageError
from planner import packaged_data


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder. ``parameters`` in all, ``active`` for one token (fewer in a mixture of experts).

    ``latent`` is the number of values of a compressed KV entry of one layer (multi-head latent attention),
    0 for keys and values of ``kv_heads`` heads. ``context`` is the longest it was made for.
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
        """Refuse what is no model."""
        counts = (self.parameters, self.active, self.layers, self.hidden, self.heads, self.kv_heads, self.head_size)
        if min(counts) <= 0 or self.context <= 0 or self.latent < 0:
            raise UsageError(
                f"model {self.name!r} has a count of 0 or less",
                hint="read layers, heads and sizes from its config.json",
            )
        if self.active > self.parameters:
            raise UsageError(
                f"model {self.name!r} has more active parameters than parameters", hint="active is what one token uses"
            )

    def kv_values(self, tensor_parallel: int, layers: int) -> float:
        """Values of the KV cache that one token takes on one GPU.

        Heads are shared out over the group, at least one each; a latent is kept whole by every GPU.
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
    """A known model; what stands before the slash and the case do not matter. Raises UsageError for an unknown one."""
    wanted = name.rsplit("/", 1)[-1].lower()
    for found in known().values():
        if wanted == found.name.lower() or wanted.startswith(found.name.lower() + "-"):
            return found
    raise UsageError(
        f"no model is known as {name!r}",
        hint=f"give its config.json with --config-json, or one of: {', '.join(known())}",
    )


def of_config(document: Mapping[str, Any], *, name: str = "", parameters: float | None = None) -> ModelShape:
    """A shape from a ``config.json`` as transformers writes it.

    ``parameters`` are counted from the sizes when not given. Raises UsageError naming the key that is missing.
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
            hint="give the config.json of the model itself, as its publisher has it",
        )
    return value


def _parameters(
    config: Mapping[str, Any], layers: int, hidden: int, heads: int, kv_heads: int, head_size: int
) -> tuple[float, float]:
    """Parameters in all and for one token: embeddings, attention, and dense or mixed feed-forward layers."""
    embeddings = float(config.get("vocab_size") or 0) * hidden * (1 if config.get("tie_word_embeddings") else 2)
    attention = 2.0 * hidden * head_size * (heads + kv_heads)
    if config.get("kv_lora_rank"):
        attention = _latent_attention(config, hidden, heads)
    wide = 3.0 * hidden * float(config.get("intermediate_size") or 4 * hidden)
    experts = int(config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts") or 0)
    if not experts:
        whole = embeddings + layers * (attention + wide)
        return whole, whole
    one = 3.0 * hidden * float(config.get("moe_intermediate_size") or config.get("intermediate_size") or 4 * hidden)
    shared = one * int(config.get("n_shared_experts") or 0)
    dense = int(config.get("first_k_dense_replace") or 0)
    used = int(config.get("num_experts_per_tok") or 1)
    fixed = embeddings + layers * attention + dense * wide + (layers - dense) * shared
    return fixed + (layers - dense) * experts * one, fixed + (layers - dense) * used * one


def _latent_attention(config: Mapping[str, Any], hidden: int, heads: int) -> float:
    """Multi-head latent attention as in DeepSeek-V2: low-rank queries, one latent for keys and values."""
    rank, rope = int(config["kv_lora_rank"]), int(config.get("qk_rope_head_dim") or 0)
    plain, value = int(config.get("qk_nope_head_dim") or 128), int(config.get("v_head_dim") or 128)
    query = int(config.get("q_lora_rank") or 0)
    wide = heads * (plain + rope)
    queries = float(query * (hidden + wide)) if query else float(hidden * wide)
    return queries + hidden * (rank + rope) + rank * heads * (plain + value) + heads * value * hidden
