"""The packaged adapters cover the vocabulary; an invalid adapter is reported with line and key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collectors.mapping.registry import ADAPTERS, adapter, adapter_from_file
from outrider.errors import ConfigError, UsageError
from outrider.model import EntityKind, SignalKey
from outrider.vocabulary import catalog

GOOD = """adapter: x
target: node
entities:
  node: {target: true}
signals:
  node_ready: {gauge: up}
"""


@pytest.mark.parametrize("name", ADAPTERS)
def test_packaged_adapters_are_valid(name) -> None:
    loaded = adapter(name)
    assert loaded.name == name
    assert loaded.metric_names
    for signal, rules in loaded.rules.items():
        assert catalog.signal(signal).entity in loaded.entities
        assert rules
    for kind, keys in loaded.keys.items():
        assert len(set(keys)) == len(keys), kind
    assert SignalKey("target_up") in loaded.keys[loaded.target]


def test_required_signals_are_provided() -> None:
    names = {name for one in ADAPTERS for name in (*adapter(one).rules, adapter(one).up, adapter(one).load)}
    assert {
        "engine_up",
        "engine_inflight_requests",
        "engine_http_requests_total",
        "engine_requests_failed_total",
        "engine_open_files",
        "engine_start_time_seconds",
        "engine_memory_reserved_ratio",
        "engine_kv_cache_capacity_tokens",
        "node_accel_capacity",
        "node_boot_time_seconds",
    } <= names
    assert adapter("dcgm").seen == {EntityKind.GPU: "hw_accel_seen"}


@pytest.mark.parametrize(
    ("change", "line", "key", "words"),
    [
        (("{gauge: up}", "{gauge: up, scal: 2}"), 6, "signals.node_ready.scal", "unknown key"),
        (("{gauge: up}", "{gauge: up, scale: two}"), 6, "signals.node_ready.scale", "a number"),
        (("{gauge: up}", "{gauge: up, rate: up}"), 6, "signals.node_ready", "exactly one of"),
        (("{gauge: up}", "{histogram: up}"), 6, "signals.node_ready.histogram", "state in the catalog"),
        (("{gauge: up}", "{gauge: up, where: {a: '~('}}"), 6, "signals.node_ready.where.a", "regular expression"),
        (("node_ready:", "node_redy:"), 6, "signals.node_redy", "unknown signal"),
        (("node_ready:", "pod_ready:"), 6, "signals.pod_ready", "entities"),
        (("target: node", "target: nod"), 2, "target", "is not a valid"),
        (("adapter: x\n", ""), 1, "adapter", "missing"),
        (("target: node", "target: node\ntarget: node"), 3, "target", "duplicated"),
        (("target: node", "target: node\nseen: {gpu: nothing}"), 3, "seen.gpu", "not a signal"),
        (("target: node", "target: ["), 4, "(syntax)", "not valid YAML"),
    ],
)
def test_an_error_is_reported_with_file_line_and_key(tmp_path, change, line, key, words) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(*change), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        adapter_from_file(path)
    problems = [(problem.line, problem.key) for problem in caught.value.problems]
    assert (line, key) in problems
    assert any(words in problem.message for problem in caught.value.problems)
    assert "mine.yaml" in caught.value.message


@pytest.mark.parametrize("written", ["1e-6", "1.0e-6", "1E-06", "0.000001"])
def test_numbers_are_accepted_in_every_yaml_form(tmp_path, written) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace("{gauge: up}", f"{{gauge: up, scale: {written}}}"), encoding="utf-8")
    (rule,) = adapter_from_file(path).rules["node_ready"]
    assert rule.scale == pytest.approx(1e-6)


def test_all_errors_are_reported_in_line_order(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace("{gauge: up}", "{gauge: up, a: 1}").replace("target: node", "target: nod"), "utf-8")
    with pytest.raises(ConfigError) as caught:
        adapter_from_file(path)
    lines = [problem.line for problem in caught.value.problems]
    assert lines == sorted(lines)
    assert {2, 6} <= set(lines)


def test_an_unknown_adapter_error_lists_the_known_ones(tmp_path) -> None:
    with pytest.raises(UsageError, match="unknown adapter 'vlm'") as caught:
        adapter("vlm")
    assert "vllm" in caught.value.hint
    with pytest.raises(UsageError, match="cannot read adapter"):
        adapter_from_file(tmp_path / "none.yaml")


OLD = {
    "engine_kv_cache_usage_ratio": ("vllm:gpu_cache_usage_perc", 0.5),
    "engine_prefix_cache_hit_ratio": ("vllm:gpu_prefix_cache_hit_rate", 0.25),
    "engine_generation_tokens_per_second": ("vllm:avg_generation_throughput_toks_per_s", 12.0),
}


@pytest.mark.parametrize("signal", OLD)
def test_old_metric_names_of_vllm(bench, signal) -> None:
    target = bench("vllm")
    name, value = OLD[signal]
    target.scrape(f'{name}{{model_name="m"}} {value}\n')
    assert target.cell(signal) == value


def test_the_newest_metric_name_wins(bench) -> None:
    target = bench("vllm")
    target.scrape("vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.2\n")
    assert target.cell("engine_kv_cache_usage_ratio") == 0.2


def test_settings_in_labels(bench) -> None:
    target = bench("vllm")
    target.scrape('vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",gpu_memory_utilization="0.92"} 1\n')
    assert target.cell("engine_kv_cache_capacity_tokens") == 16_000
    assert target.cell("engine_memory_reserved_ratio") == 0.92
    target.scrape('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n')
    assert str(target.cell("engine_kv_cache_capacity_tokens")) == "3"  # absent: None is no number


KUBE = """\
kube_node_status_condition{node="a",condition="Ready",status="true"} 1
kube_node_status_condition{node="a",condition="Ready",status="false"} 0
kube_node_status_condition{node="a",condition="DiskPressure",status="true"} 1
kube_node_status_capacity{node="a",resource="nvidia_com_gpu",unit="integer"} 8
kube_node_status_capacity{node="a",resource="cpu",unit="core"} 96
kube_node_status_allocatable{node="a",resource="nvidia_com_gpu"} 8
kube_node_status_allocatable{node="idle",resource="nvidia_com_gpu"} 8
kube_pod_container_resource_requests{node="a",namespace="n",pod="p",container="c",resource="nvidia_com_gpu"} 2
kube_pod_info{namespace="n",pod="p",node="a",created_by_name="rs"} 1
kube_pod_info{namespace="n",pod="q",node="",created_by_name="rs"} 1
kube_pod_status_phase{namespace="n",pod="p",phase="Running"} 1
kube_pod_status_phase{namespace="n",pod="p",phase="Failed"} 0
kube_pod_status_phase{namespace="n",pod="q",phase="Failed"} 1
kube_pod_container_status_waiting_reason{namespace="n",pod="q",container="c",reason="CrashLoopBackOff"} 1
kube_deployment_status_replicas_available{namespace="n",deployment="d"} 1
kube_deployment_spec_replicas{namespace="n",deployment="d"} 4
"""


def test_signals_of_kube_state_metrics(bench) -> None:
    target = bench("kube_state_metrics", entity={"kind": "cluster", "name": "test"})
    target.scrape(KUBE)
    assert target.cell("node_ready", EntityKind.NODE) == 1
    assert target.cell("node_pressure", EntityKind.NODE) == 1
    assert target.cell("node_accel_capacity", EntityKind.NODE) == 8
    assert target.cell("node_accel_allocated_ratio", EntityKind.NODE, "a") == 0.25
    assert target.cell("node_accel_allocated_ratio", EntityKind.NODE, "idle") == 0
    assert target.cell("pod_phase", EntityKind.POD, "p") == 1
    assert target.cell("pod_phase", EntityKind.POD, "q") == 3
    assert target.cell("pod_waiting_reason", EntityKind.POD, "p") == 0
    assert target.cell("pod_waiting_reason", EntityKind.POD, "q") == 3
    assert target.cell("pod_unschedulable", EntityKind.POD, "p") == 0
    assert target.cell("workload_available_ratio", EntityKind.WORKLOAD, "d") == 0.25
    edges = {(str(lower), str(upper)) for lower, upper in target.collected.edges}
    assert edges == {("node/a", "pod/n/p")}


def test_container_rows_without_a_name_are_totals(bench) -> None:
    target = bench("cadvisor", entity={"kind": "node", "name": "a"})
    target.scrape(
        'container_memory_working_set_bytes{container="",pod="p",namespace="n"} 9\n'
        'container_memory_working_set_bytes{container="POD",pod="p",namespace="n"} 1\n'
        'container_memory_working_set_bytes{container="c",pod="p",namespace="n"} 4\n'
        'container_spec_memory_limit_bytes{container="c",pod="p",namespace="n"} 0\n'
    )
    assert [entity.name for entity in target.batch(EntityKind.CONTAINER).entities] == ["p/c"]
    assert target.cell("container_memory_working_set_bytes", EntityKind.CONTAINER) == 4
    assert str(target.cell("container_memory_limit_ratio", EntityKind.CONTAINER)) == "1"  # undefined: no limit


def test_units_of_devices(bench) -> None:
    target = bench("dcgm", entity={"kind": "node", "name": "a"})
    labels = '{gpu="0",UUID="GPU-a"}'

    def page(energy, thermal):
        return (
            f"DCGM_FI_DEV_GPU_UTIL{labels} 50\nDCGM_FI_DEV_FB_USED{labels} 1024\nDCGM_FI_DEV_FB_FREE{labels} 3072\n"
            f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{labels} {energy}\nDCGM_FI_DEV_THERMAL_VIOLATION{labels} {thermal}\n"
            f"DCGM_FI_DEV_SM_CLOCK{labels} 1980\n"
            f'DCGM_EXP_GPU_HEALTH_STATUS{{gpu="0",UUID="GPU-a",health_watch="PCIE"}} 0\n'
            f'DCGM_EXP_GPU_HEALTH_STATUS{{gpu="0",UUID="GPU-a",health_watch="MEM"}} 10\n'
        )

    target.scrape(page(1_000_000, 0))
    target.scrape(page(1_006_000, 3_000_000_000))
    gpu = EntityKind.GPU
    assert target.cell("hw_accel_utilization_ratio", gpu) == 0.5
    assert target.cell("hw_accel_memory_used_bytes", gpu) == 1024**3
    assert target.cell("hw_accel_memory_used_ratio", gpu) == 0.25
    assert target.cell("hw_accel_energy_joules_total", gpu) == 6
    assert target.cell("hw_accel_throttle_thermal_ratio", gpu) == pytest.approx(0.2)
    assert target.cell("hw_accel_core_clock_hertz", gpu) == 1.98e9
    assert target.cell("hw_accel_healthy", gpu) == 0


def test_devices_before_ampere_retire_pages_instead_of_rows(bench) -> None:
    target = bench("dcgm", entity={"kind": "node", "name": "a"})
    row = 'DCGM_FI_DEV_RETIRED_DBE{gpu="0",UUID="GPU-a",modelName="Tesla T4"}'
    target.scrape(f"{row} 3\n")
    target.scrape(f"{row} 5\n")
    assert target.cell("hw_accel_memory_retired_total", EntityKind.GPU) == 2


NODE = """\
node_cpu_seconds_total{cpu="0",mode="idle"} IDLE
node_cpu_seconds_total{cpu="1",mode="idle"} IDLE
node_cpu_seconds_total{cpu="0",mode="user"} 5
node_memory_MemTotal_bytes 100
node_memory_MemAvailable_bytes 25
node_filesystem_avail_bytes{device="a",mountpoint="/",fstype="ext4"} 1
node_filesystem_size_bytes{device="a",mountpoint="/",fstype="ext4"} 10
node_filesystem_avail_bytes{device="b",mountpoint="/m",fstype="ext4"} 9
node_filesystem_size_bytes{device="b",mountpoint="/m",fstype="ext4"} 10
node_filesystem_avail_bytes{device="t",mountpoint="/t",fstype="tmpfs"} 0
node_filesystem_size_bytes{device="t",mountpoint="/t",fstype="tmpfs"} 10
node_network_receive_bytes_total{device="eth0"} RECEIVED
node_network_transmit_bytes_total{device="eth0"} 0
node_network_receive_bytes_total{device="lo"} 1
node_network_transmit_bytes_total{device="lo"} 1
node_infiniband_state_id{device="mlx5_0",port="1"} 4
node_infiniband_state_id{device="mlx5_1",port="1"} 1
"""


def test_units_of_a_node(bench) -> None:
    target = bench("node_exporter", entity={"kind": "node", "name": "a"})
    target.scrape(NODE.replace("IDLE", "100").replace("RECEIVED", "0"))
    target.scrape(NODE.replace("IDLE", "106").replace("RECEIVED", "1500"))
    node = EntityKind.NODE
    assert target.cell("node_cpu_utilization_ratio", node) == pytest.approx(0.6)
    assert target.cell("node_memory_available_ratio", node) == 0.25
    assert target.cell("node_filesystem_available_ratio", node) == 0.1
    assert target.cell("node_network_bytes_per_second", node) == 100
    assert target.cell("hw_link_up", EntityKind.PORT, "a/mlx5_0/1") == 1
    assert target.cell("hw_link_up", EntityKind.PORT, "a/mlx5_1/1") == 0


def test_the_adapter_of_the_guide_reads_its_page(bench) -> None:
    page = (Path(__file__).parents[3] / "docs/howto/add-an-engine.md").read_text(encoding="utf-8")
    text = next(block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "adapter: acme " in block)
    target = bench("acme", text=text)
    for tokens in (100, 250):
        target.scrape(
            f"acme_running 3\nacme_queue_length 2\nacme_tokens_total {tokens}\n"
            f'acme_requests_total{{code="200"}} {tokens}\n'
            f'acme_first_token_ms_bucket{{le="250"}} {tokens}\nacme_first_token_ms_bucket{{le="+Inf"}} {tokens}\n'
        )
    assert target.cell("engine_requests_waiting") == 2
    assert target.cell("engine_generation_tokens_per_second") == 10
    assert target.cell("engine_error_ratio") == 0
    assert target.cell("engine_ttft_seconds#8") == 150  # up to 0.25 s


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        (("{gauge: up}", "{product: [up]}"), "signals.node_ready.product", "two factors"),
        (("{gauge: up}", "{gauge: up, otherwise: {where: {a: b}}}"), "signals.node_ready.otherwise", "zero_beside"),
        (("{gauge: up}", "{gauge: up, statistic: mean}"), "signals.node_ready.gauge", "state in the catalog"),
        (("target: node", "target: node\nprobe: {load: /load}"), "probe", "must be set together"),
        (
            ("target: node", "target: node\nprobe: {load: /load, load_as: loads..running}"),
            "probe.load_as",
            "'loads..running' is not a path into a response; expected names joined by dots",
        ),
        (("target: node", "target: node\nprobe: {load: /l, load_as: [a, b*]}"), "probe.load_as", "'b*' is not a path"),
        (("target: node", "target: node\nprobe: {load: /l, load_as: a + }"), "probe.load_as", "'a +' is not a path"),
        (("target: node", "target: node\nprobe: {load: /l, load_as: {a: b}}"), "probe.load_as", "expected a name"),
        (("target: node", "target: node\nprobe: {health: healthz}"), "probe.health", "expected a path such as /health"),
        (
            ("target: node", "target: node\nevents: [{kind: xd, entity: gpu, code: a}]"),
            "events[0].kind",
            "valid: xid",
        ),
        (("target: node", "target: node\nprobe: {port: 70000}"), "probe.port", "expected a port from 1 to 65535"),
        (("target: node", "target: node\nno_value: none"), "no_value", "a number"),
        (("target: node", "target: node\nevents: 5"), "events", "expected a list"),
        (("target: node", "target: node\nedges: {a: b}"), "edges", "expected a list"),
        (("target: node", "target: node\nlabels: []"), "labels", "expected a mapping"),
        (("target: node", "target: node\nheartbeat: {of: up}"), "heartbeat.within", "duration"),
        (
            ("target: node", "target: node\nheartbeat: {within: 25s}"),
            "heartbeat.of",
            "counters that move on every page",
        ),
        (
            ("target: node", "target: node\nfixes: {signals: {node_redy: x}}"),
            "fixes.signals.node_redy",
            "unknown signal",
        ),
        (
            ("node_ready: {gauge: up}", "svc_tpot_seconds: {gauge: up}"),
            "signals.svc_tpot_seconds.gauge",
            "statistic: mean",
        ),
    ],
)
def test_other_errors_of_adapter_files(tmp_path, change, key, words) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(*change), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        adapter_from_file(path)
    assert any(problem.key == key and words in problem.message for problem in caught.value.problems), (
        caught.value.problems
    )
