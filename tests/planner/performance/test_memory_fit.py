from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import UsageError
from outrider.text.i18n import LANGUAGES
from planner.capacity.redundancy import whole_nodes, with_spares
from planner.performance.gpu_catalog import gpu, gpus, terms
from planner.performance.memory_fit import GIBIBYTE, Fit, FitReason, NoFit, Setup, fit, processes, slices
from planner.performance.model_specs import known, model, of_config

LLAMA = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
DEEPSEEK = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
}


def test_a_config_counts_to_the_published_parameters():
    dense, mixed = of_config(LLAMA, name="llama"), of_config(DEEPSEEK, name="deepseek")
    assert dense.parameters == pytest.approx(8.03e9, rel=0.01)
    assert (dense.head_size, dense.kv_heads, dense.latent) == (128, 8, 0)
    assert mixed.parameters == pytest.approx(671e9, rel=0.01)
    assert mixed.active == pytest.approx(37e9, rel=0.05)
    assert mixed.latent == 576


def test_kv_bytes_of_a_token_follow_its_heads():
    # 2 x 32 layers x 8 heads x 128 x 2 bytes; a latent of 576 in 61 layers is kept whole by each GPU
    assert model("Llama-3.1-8B").kv_values(1, 32) * 2 == 131072
    assert model("Llama-3.1-8B").kv_values(16, 32) * 2 == 16384, "a head at least on each GPU"
    assert model("deepseek-ai/DeepSeek-R1").kv_values(1, 61) == model("DeepSeek-R1").kv_values(8, 61) == 61 * 576


def test_weights_overhead_and_kv_add_up_to_the_memory():
    result = fit(model("Llama-3.1-8B"), gpu("H100"), context=8192)
    assert isinstance(result, Fit)
    assert result.weights_bytes == pytest.approx(8.03e9 * 2)
    assert result.weights_bytes + result.overhead_bytes + result.kv_bytes == pytest.approx(result.usable_bytes)
    assert result.kv_tokens % 16 == 0
    assert result.kv_tokens * result.kv_bytes_per_token <= result.kv_bytes
    assert result.at(8192) == result.concurrency


def test_a_refused_fit_names_remedies():
    result = fit(model("Llama-3.1-70B"), gpu("A100"))
    assert isinstance(result, NoFit)
    assert (result.reason, result.remedies) == (FitReason.WEIGHTS, ("TP 2", "8 bit"))
    for language in LANGUAGES:
        assert "TP 2" in result.text(language)
    assert result.text().endswith("Fits with TP 2 or with 8 bit.")


def test_too_little_kv_gives_the_largest_context_and_concurrency():
    result = fit(model("Llama-3.1-8B"), gpu("A10"), context=8192, concurrency=64)
    assert isinstance(result, NoFit)
    assert result.reason is FitReason.KV
    again = fit(model("Llama-3.1-8B"), gpu("A10"), context=8192, concurrency=max(result.concurrency, 1))
    longest = fit(model("Llama-3.1-8B"), gpu("A10"), context=result.context)
    assert isinstance(longest, Fit)
    assert isinstance(again, Fit) == (result.concurrency > 0)


@pytest.mark.parametrize(
    ("setup", "context", "reason"),
    [
        (Setup(tp=3), 100, FitReason.HEADS),
        (Setup(pp=64), 100, FitReason.LAYERS),
        (Setup(), 10**6, FitReason.CONTEXT),
    ],
)
def test_heads_that_cannot_be_divided_are_refused(setup, context, reason):
    result = fit(model("Llama-3.1-8B"), gpu("H200"), setup, context=context)
    assert isinstance(result, NoFit)
    assert result.reason is reason
    assert result.text("zh") != result.text("en")


@given(
    st.sampled_from(sorted(gpus())), st.sampled_from([1, 2, 4, 8]), st.integers(16, 8192), st.sampled_from([16, 8, 4])
)
def test_more_gpus_hold_more_and_longer_contexts_fewer(name, tp, context, bits):
    shape, spec = model("Llama-3.1-8B"), gpus()[name]
    result = fit(shape, spec, Setup(tp=tp, bits=bits), context=context)
    if isinstance(result, NoFit):
        return
    longer = fit(shape, spec, Setup(tp=tp, bits=bits), context=min(2 * context, shape.context))
    assert isinstance(longer, NoFit) or longer.concurrency <= result.concurrency
    if tp < 8:
        wider = fit(shape, spec, Setup(tp=tp * 2, bits=bits), context=context)
        assert isinstance(wider, Fit)
        assert wider.kv_tokens > result.kv_tokens


def test_small_models_share_a_gpu():
    small = of_config({**LLAMA, "num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192})
    cuts = slices(small, gpu("H100"), context=2048, concurrency=4)
    assert cuts[0].name == "1g.10gb"
    count, share = processes(small, gpu("H100"), context=2048, concurrency=4)
    assert count > 7
    assert share == pytest.approx(0.9 / count)
    assert slices(small, gpu("H100"), Setup(tp=2), context=2048, concurrency=4) == []
    assert processes(model("Llama-3.1-70B"), gpu("T4"), context=100, concurrency=1) == (0, 0.0)


def test_every_device_is_a_prior_with_its_source():
    wanted = "A10 A30 A100 A800 T4 L40S|A100 40GB|RTX 4090|H20 H100 H800 H200 B200|Ascend 910B|MI300X"
    names = [name for part in wanted.split("|") for name in ([part] if part in gpus() else part.split())]
    assert sorted(gpus()) == sorted(names)
    for spec in gpus().values():
        assert spec.specs_source.startswith("prior")
        assert spec.price_source.startswith("prior")
        assert spec.memory_bytes > 10 * GIBIBYTE
        for cut in spec.slices:
            assert cut.most * cut.memory_bytes <= spec.memory_bytes * 1.01
    assert all(term.source.startswith("prior") for term in terms().values())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10G", "A10"),
        ("910b", "Ascend 910B"),
        ("4090", "RTX 4090"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("A100-PCIE-40GB", "A100 40GB"),
        ("A100_NVLINK_80GB", "A100"),
        ("Tesla T4 16GB", "T4"),
        ("TeslaT4", "T4"),
        ("NVIDIA-B200-192GB", "B200"),
    ],
)
def test_devices_are_found_by_their_names_in_tools(text, name):
    assert gpu(text).name == name


def test_a_device_has_the_memory_in_its_name():
    assert gpu("NVIDIA A100-SXM4-40GB").memory_bytes == 40 * GIBIBYTE
    assert gpu("A100").memory_bytes == 80 * GIBIBYTE
    assert gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb").whole == gpu("A100 1g.5gb").whole == "A100 40GB"
    assert gpu("A100 1g.10gb").whole == "A100"


@pytest.mark.parametrize(
    ("text", "facts"), [("A100-SXM-64GB", "64 GB"), ("H100 NVL 94GB", "94 GB"), ("L40S 96GB", "96 GB")]
)
def test_a_device_with_another_memory_size_is_refused(text, facts):
    with pytest.raises(UsageError, match=facts) as caught:
        gpu(text)
    assert "known types" in caught.value.hint


@pytest.mark.parametrize("text", ["", "V100", "potato", "NVIDIA GH200 480GB", "NVIDIA GB200"])
def test_an_unknown_device_is_refused_with_those_known(text):
    with pytest.raises(UsageError) as caught:
        gpu(text)
    assert "H100" in caught.value.hint


def test_an_unknown_model_and_a_broken_config_are_refused():
    with pytest.raises(UsageError, match="unknown model"):
        model("GPT-9")
    with pytest.raises(UsageError, match="hidden_size"):
        of_config({**LLAMA, "hidden_size": None})
    assert all(shape.parameters >= shape.active for shape in known().values())


@given(st.integers(1, 60), st.integers(2, 8), st.integers(0, 3))
def test_spares_are_sufficient_and_minimal(needed, domains, losses):
    if losses >= domains:
        with pytest.raises(UsageError):
            with_spares(needed, domains=domains, losses=losses)
        return
    result = with_spares(needed, domains=domains, losses=losses)

    def left(count: int) -> int:
        sizes = sorted((count // domains + (place < count % domains) for place in range(domains)), reverse=True)
        return count - sum(sizes[:losses])

    assert left(result.replicas) >= needed
    assert result.replicas == needed or left(result.replicas - 1) < needed
    assert result.line("zh") != result.line("en")


def test_groups_lie_in_one_node_or_fill_whole_ones():
    assert whole_nodes(5, gpus_per_replica=4, gpus_per_node=8).nodes == 3
    assert whole_nodes(5, gpus_per_replica=3, gpus_per_node=8).idle_gpus == 24 - 15
    assert whole_nodes(2, gpus_per_replica=16, gpus_per_node=8).nodes == 4
    assert whole_nodes(0, gpus_per_replica=1, gpus_per_node=8).gpus == 0
