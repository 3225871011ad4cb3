"""Old and new names, special labels and special numbers of each system."""

from __future__ import annotations

import pytest

from collectors.mapping.registry import ADAPTERS, adapter
from outrider.model import CellStatus, EntityKind
from outrider.text import i18n

GPU, NODE, SERVICE = EntityKind.GPU, EntityKind.NODE, EntityKind.SERVICE
REPLICA, WORKLOAD, TENANT = EntityKind.REPLICA, EntityKind.WORKLOAD, EntityKind.TENANT

# adapter, kind of entity, page, signal, value
# ruff: noqa: E501 (a table reads better with a row a line)
ONE_LINE = [
    ("dcgm", GPU, 'DCGM_FI_DEV_GPU_TEMP_CELSIUS{UUID="g"} 61', "hw_accel_temperature_celsius", 61),
    ("dcgm", GPU, 'DCGM_FI_DEV_BOARD_POWER_WATTS{uuid="g"} 700', "hw_accel_power_watts", 700),
    ("dcgm", GPU, 'DCGM_FI_DEV_MEMORY_TEMP_CELSIUS{UUID="g"} 70', "hw_accel_memory_temperature_celsius", 70),
    ("dcgm", GPU, 'DCGM_FI_PROF_SM_UTIL_RATIO{UUID="g"} 0.5', "hw_accel_compute_active_ratio", 0.5),
    ("dcgm", GPU, 'DCGM_FI_DEV_XID_ERROR{UUID="g",err_code="79"} 79', "hw_accel_fault_code", 79),
    ("dcgm", GPU, 'DCGM_FI_DEV_MEM_COPY_UTIL{UUID="g"} 40', "hw_accel_memory_bandwidth_ratio", 0.4),
    ("amd", GPU, 'gpu_edge_temperature{gpu_uuid="g"} 50', "hw_accel_temperature_celsius", 50),
    ("amd", GPU, 'gpu_average_package_power{serial_number="s"} 300', "hw_accel_power_watts", 300),
    ("amd", GPU, 'gpu_power_usage{gpu_id="0"} 301', "hw_accel_power_watts", 301),
    ("amd", GPU, 'gpu_hbm_temperature{gpu_uuid="g"} 66', "hw_accel_memory_temperature_celsius", 66),
    ("amd", GPU, 'gpu_clock{gpu_uuid="g",clock_type="GPU_CLOCK_TYPE_SYSTEM"} 2100', "hw_accel_core_clock_hertz", 2.1e9),
    ("npu_exporter", GPU, 'npu_chip_info_used_memory{id="3",vdie_id=""} 2', "hw_accel_memory_used_bytes", 2 * 2**20),
    ("amd", GPU, 'amd_gpu_gfx_activity{gpu_uuid="g"} 40', "hw_accel_utilization_ratio", 0.4),
    ("amd", NODE, 'amd_gpu_nodes_total{hostname="h"} 8', "hw_accel_present", 8),
    ("nvidia_gpu_exporter", GPU, 'nvidia_smi_power_draw_instant_watts{uuid="g"} 9', "hw_accel_power_watts", 9),
    ("nvidia_gpu_exporter", NODE, 'nvidia_smi_gpu_info{uuid="a"} 1\nnvidia_smi_gpu_info{uuid="b"} 1', "hw_accel_present", 2),
    ("ray_serve", REPLICA, 'ray_vllm:num_requests_running{ReplicaId="r"} 4', "engine_requests_running", 4),
    ("ray_serve", REPLICA, 'ray_vllm_gpu_cache_usage_perc{ReplicaId="r"} 0.4', "engine_kv_cache_usage_ratio", 0.4),
    ("nim", REPLICA, 'gpu_cache_usage_perc{model_name="m"} 0.25', "engine_kv_cache_usage_ratio", 0.25),
    ("mindie", REPLICA, "npu_radix_match_hit_num 3\nall_radix_match_num 12", "engine_prefix_cache_hit_ratio", 0.25),
    ("llamacpp", REPLICA, "llamacpp:kv_cache_usage_ratio 0.5", "engine_kv_cache_usage_ratio", 0.5),
    ("epp", SERVICE, 'inference_model_running_requests{model_name="m"} 7', "svc_inflight_requests", 7),
    ("knative", SERVICE, 'autoscaler_actual_pods{revision_name="r"} 3', "svc_ready_backends", 3),
    ("knative", SERVICE, 'revision_queue_depth{revision_name="r"} 2', "svc_queue_requests", 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "page", "signal", "value"), ONE_LINE)
def test_a_gauge_under_another_name(bench, name, kind, page, signal, value) -> None:
    target = bench(name)
    target.scrape(page + "\n")
    assert target.cell(signal, kind) == pytest.approx(value)


# adapter, kind of entity, series, signal, value of an increase of 30 in 15 s
RATES = [
    ("epp", SERVICE, 'inference_model_request_total{model_name="m",target_model_name="t"}', "svc_requests_per_second", 2),
    ("epp", SERVICE, 'inference_model_output_tokens_sum{model_name="m"}', "svc_tokens_per_second", 2),
    ("keda", WORKLOAD, 'keda_scaler_errors{namespace="n",scaledObject="so"}', "autoscaler_errors_per_second", 2),
    ("knative", SERVICE, 'revision_request_count{revision_name="r",response_code="200"}', "svc_requests_per_second", 2),
    ("knative", SERVICE, 'activator_request_count{response_code="200"}', "svc_requests_per_second", 2),
    ("ray_serve", REPLICA, 'ray_vllm:generation_tokens_total{ReplicaId="r"}', "engine_generation_tokens_per_second", 2),
    ("litellm", SERVICE, 'litellm_proxy_total_requests_metric_total{requested_model="m",status_code="200"}', "svc_requests_per_second", 2),
    ("litellm", SERVICE, 'litellm_proxy_total_requests_metric_total{requested_model="m",status_code="503"}', "svc_failed_total", 30),
    ("litellm", SERVICE, 'litellm_proxy_total_requests_metric_total{requested_model="m",status_code="429"}', "svc_rate_limited_ratio", 1),
    ("litellm", SERVICE, 'litellm_proxy_total_requests_metric_total{requested_model="m",status_code="429"}', "svc_refused_total", 0),
    ("litellm", TENANT, 'litellm_input_tokens_metric_total{requested_model="m",team_alias="a"}', "tenant_prompt_tokens_total", 30),
    ("litellm", TENANT, 'litellm_input_tokens_metric_total{requested_model="m",team_alias="None",team="t"}', "tenant_prompt_tokens_total", 30),
    ("sdk", TENANT, 'outrider_sdk_tokens_total{model="m",tenant="a",kind="input"}', "tenant_prompt_tokens_total", 30),
    ("otel_genai", SERVICE, 'gen_ai_server_request_duration_count{gen_ai_request_model="m"}', "svc_requests_per_second", 2),
    ("otel_genai", SERVICE, 'gen_ai_client_token_usage_token_sum{gen_ai_token_type="output"}', "svc_tokens_per_second", 2),
    ("dcgm", GPU, 'DCGM_FI_DEV_PCIE_REPLAY_TOTAL{UUID="g"}', "hw_accel_pcie_replay_total", 30),
    ("dcgm", GPU, 'DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL{UUID="g"}', "hw_accel_interconnect_errors_total", 30),
    ("dcgm", GPU, 'DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL{UUID="g"}', "hw_accel_memory_retired_total", 30),
    ("trtllm_serve", REPLICA, 'request_success_total{finished_reason="stop"}', "engine_requests_per_second", 2),
    ("coroot", SERVICE, 'container_net_tcp_failed_connects_total{destination="10.0.0.1:80"}', "svc_connect_failures_per_second", 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "series", "signal", "value"), RATES)
def test_a_counter_under_another_name(bench, name, kind, series, signal, value) -> None:
    target = bench(name)
    target.scrape(f"{series} 100\n")
    assert target.cell(signal, kind) is CellStatus.ABSENT  # one page alone has no increase
    target.scrape(f"{series} 130\n")
    assert target.cell(signal, kind) == pytest.approx(value)


def test_a_counter_published_twice_by_ray_counts_once(bench) -> None:
    target = bench("ray_serve")
    for count in (0, 30):
        target.scrape("".join(f'{name}{{replica="r"}} {count}\n' for name in ("ray_serve_deployment_request_counter", "ray_serve_deployment_request_counter_total")))  # fmt: skip
    assert target.cell("engine_requests_per_second") == 2


def test_each_ray_source_describes_its_own_entity(bench) -> None:
    target = bench("ray_serve")
    target.scrape(
        'ray_serve_deployment_queued_queries{application="app",deployment="LLM"} 5\n'
        'ray_serve_replica_processing_queries{application="app",deployment="LLM",replica="r"} 9\n'
        'ray_vllm_num_requests_waiting{ReplicaId="r"} 2\n'
    )
    assert target.cell("engine_requests_waiting", name="LLM") == 5
    assert target.cell("engine_requests_waiting", name="r") == 2
    assert target.cell("svc_queue_requests", SERVICE, "app") == 5
    edges = {(lower.name, upper.name) for lower, upper in target.collected.edges}
    assert ("r", "app") in edges


ISTIO = (
    'istio_requests_total{{reporter="{0}",destination_service_name="{1}",destination_service_namespace="n",'
    'response_code="{2}"}} {3}\n'
)


def test_a_request_reported_by_both_ends_counts_once(bench) -> None:
    target = bench("istio")
    for count in (0, 30):
        both = "".join(
            ISTIO.format(end, "chat", code, count) for end in ("source", "destination") for code in (200, 500)
        )
        target.scrape(
            both + ISTIO.format("source", "embed", 200, 2 * count) + ISTIO.format("source", "embed", 429, count)
        )
    assert target.cell("svc_requests_per_second", SERVICE, "chat") == 4
    assert target.cell("svc_success_ratio", SERVICE, "chat") == 0.5
    assert target.cell("svc_failed_total", SERVICE, "chat") == 30
    assert target.cell("svc_requests_per_second", SERVICE, "embed") == 6  # a gateway alone reports it
    assert target.cell("svc_rate_limited_ratio", SERVICE, "embed") == pytest.approx(1 / 3)
    assert target.cell("svc_failed_total", SERVICE, "embed") == 0
    assert target.batch(SERVICE).entities[0].namespace == "n"


NPU = (
    'npu_chip_info_health_status{{id="0",vdie_id="V"}} {0} {3}\n'
    'npu_chip_info_utilization{{id="0",vdie_id="V"}} {1} {3}\n'
    'npu_chip_info_hccs_bandwidth_info_total_tx{{id="0",vdie_id="V"}} {1} {3}\n'
    'npu_chip_info_hccs_bandwidth_info_total_rx{{id="0",vdie_id="V"}} 3 {3}\n'
    'npu_chip_info_hccs_statistic_info_crc_err_cnt_1{{id="0",vdie_id="V"}} {2} {3}\n'
    'npu_chip_info_hccs_statistic_info_crc_err_cnt_7{{id="0",vdie_id="V"}} 5 {3}\n'
)


def npu(one, healthy: int, percent: int, errors: int) -> str:
    """The next page, with a timestamp on every line."""
    return NPU.format(healthy, percent, errors, round((one.at.timestamp() + 15) * 1000))


def test_a_failed_reading_is_not_a_value(bench) -> None:
    target = bench("npu_exporter")
    target.scrape(npu(target, 1, 50, 2))
    assert target.cell("hw_accel_utilization_ratio", GPU) == 0.5
    target.scrape(npu(target, 1, 50, 6))
    assert target.cell("hw_accel_interconnect_errors_total", GPU) == 4
    target.scrape(npu(target, -1, -1, -1))
    for signal in ("hw_accel_healthy", "hw_accel_utilization_ratio", "hw_accel_interconnect_errors_total"):
        assert target.cell(signal, GPU) is CellStatus.UNTRUSTED
    assert target.cell("hw_accel_interconnect_bytes_per_second", GPU) is CellStatus.UNTRUSTED  # no half of a sum
    target.scrape(npu(target, 1, 40, 8))
    assert target.cell("hw_accel_interconnect_errors_total", GPU) is CellStatus.UNTRUSTED  # since when?
    assert target.cell("hw_accel_utilization_ratio", GPU) == 0.4
    target.scrape(npu(target, 1, 40, 9))
    assert target.cell("hw_accel_interconnect_errors_total", GPU) == 1
    assert target.cell("hw_accel_fault_code", GPU) == 0  # the series is there only while there is a code


def test_a_device_without_an_id_is_named_by_its_node(bench) -> None:
    for name, series in (
        ("npu_exporter", 'npu_chip_info_power{id="3",vdie_id=""}'),
        ("amd", 'gpu_power_usage{gpu_id="3"}'),
    ):
        target = bench(name, entity={"kind": "node", "name": "node-a"})
        target.scrape(f"{series} 300\n")
        assert target.cell("hw_accel_power_watts", GPU, "node-a/3") == 300
        assert [(str(a), str(b)) for a, b in target.collected.edges] == [("node/node-a", "gpu/node-a/3")]


def test_a_sample_with_a_frozen_timestamp_is_stale(bench) -> None:
    target = bench("npu_exporter")
    page = npu(target, 1, 50, 2)
    target.scrape(page)
    target.scrape(page)
    assert target.cell("hw_accel_utilization_ratio", GPU) is CellStatus.STALE


MIG = "".join(
    f'{metric}{{gpu="0",UUID="G",GPU_I_PROFILE="3g.40gb",GPU_I_ID="{instance}",pod="{pod}",namespace="n"}} {value}\n'
    for instance, pod, used in ((1, "a", 1000), (2, "b", 3000))
    for metric, value in (("DCGM_FI_DEV_GPU_TEMP", 55), ("DCGM_FI_DEV_FB_USED", used))
)


def test_a_mig_instance_belongs_to_its_gpu(bench) -> None:
    target = bench("dcgm", entity={"kind": "node", "name": "node-a"})
    target.scrape(MIG)
    used = {name: target.cell("hw_accel_memory_used_bytes", GPU, name) / 2**20 for name in ("G", "G/1", "G/2")}
    assert used == {"G": 4000, "G/1": 1000, "G/2": 3000}
    assert target.cell("hw_accel_temperature_celsius", GPU, "G/2") == 55
    assert target.cell("hw_accel_present", NODE) == 1
    assert target.cell("hw_accel_seen", GPU, "G") == 1
    edges = {(str(lower), str(upper)) for lower, upper in target.collected.edges}
    parts = {("gpu/G", "gpu/G/1"), ("gpu/G", "gpu/G/2")}
    assert edges == parts | {("node/node-a", "gpu/G"), ("gpu/G/1", "pod/n/a"), ("gpu/G/2", "pod/n/b")}
    # another layout of the same device: nothing is lost
    target.scrape(MIG.replace('GPU_I_ID="2"', 'GPU_I_ID="5"'))
    names = [entity.name for entity in target.batch(GPU).entities]
    assert sorted(names) == ["G", "G/1", "G/5"]
    assert target.cell("hw_accel_seen", GPU, "G") == 1
    target.scrape("other 1\n")
    assert target.cell("hw_accel_seen", GPU, "G") == 0


def test_triton_reports_quantiles_and_the_mean(bench) -> None:
    target = bench("triton")
    summary = "".join(
        f'nv_inference_request_summary_us{{model="m",version="1",quantile="{q}"}} {q}e6\n' for q in (0.5, 0.99)
    )
    for count in (0, 10):
        target.scrape(
            f'nv_inference_request_duration_us{{model="m",version="1"}} {count * 2_000_000}\n'
            f'nv_inference_request_success{{model="m",version="1"}} {count}\n{summary}'
        )
    assert target.cell("engine_e2e_seconds") == 2.0
    assert target.cell("engine_e2e_seconds@0.99") == pytest.approx(0.99)
    assert target.cell("engine_e2e_seconds@0.9") is CellStatus.ABSENT
    assert target.cell("engine_error_ratio") == 0  # before 24.04 a failure had no reason, and there was none


def test_a_histogram_in_milliseconds_is_converted_to_seconds(bench) -> None:
    target = bench("envoy")
    for count in (0, 4):
        target.scrape(
            "".join(
                f'envoy_cluster_upstream_rq_time_bucket{{envoy_cluster_name="c",le="{bound}"}} {count}\n'
                for bound in ("1000", "2500", "+Inf")
            )
            + f'envoy_cluster_upstream_rq_time_sum{{envoy_cluster_name="c"}} {count * 800}\n'
        )
    assert target.cell("svc_latency_seconds#3", SERVICE) == 4  # up to 1 s
    assert target.cell("svc_latency_seconds#-1", SERVICE) == pytest.approx(3.2)


def test_every_fix_exists_in_both_languages() -> None:
    for language in ("en", "zh"):
        known = i18n.texts(language)
        for name in ADAPTERS:
            fixes = adapter(name).fixes
            assert fixes.default, name
            for key in (fixes.default, fixes.means, *fixes.signals.values()):
                assert not key or f"collect.fix.{key}" in known, (name, key)
            assert set(fixes.signals) <= set(adapter(name).rules), name


def test_each_mean_only_signal_has_advice_for_quantiles() -> None:
    for name in ADAPTERS:
        means = {rule.signal for rules in adapter(name).rules.values() for rule in rules if rule.statistic == "mean"}
        assert not means or adapter(name).fixes.means, name
