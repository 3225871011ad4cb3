"""Pages of every engine kind: both parsers read them, and each has its engine's peculiarities."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors.exposition.parser import Parser
from simulator.exporters.engines import status
from tests.simulator.engine_replicas import KINDS, START, STEP, Bent, Engines, described, total, values

OUTLASTS = re.compile("cpu|energy|gc_")  # not counted by the engine core


@pytest.fixture(scope="module")
def engines() -> dict[str, Engines]:
    result = {kind: Engines(kind) for kind in KINDS}
    for one in result.values():
        one.step()
    return result


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_both_parsers_read_a_page_and_agree(kind: str, engines: dict[str, Engines]) -> None:
    page = engines[kind].page()
    families = list(text_string_to_metric_families(page))
    theirs = sum(len(family.samples) for family in families)
    ours = Parser().parse(page.encode())
    assert theirs == len(values(page)) == len(ours.layout.series)
    assert len({series.identity for series in ours.layout.series}) == theirs
    assert {family.type for family in families} <= {"counter", "gauge", "histogram", "summary"}


@pytest.mark.parametrize("kind", KINDS)
def test_counters_only_grow_until_a_new_process_begins_at_zero(kind: str) -> None:
    engines = Engines(kind)
    before, moved = engines.page(), 0
    kinds = {name: family_info["type"] for name, family_info in described(before).items()}

    def counted(page: str) -> dict[str, float]:
        names = re.compile(r"_(bucket|count|sum)$")
        return {
            series: number
            for series, number in values(page).items()
            if kinds.get(series.split("{")[0]) == "counter"
            or kinds.get(names.sub("", series.split("{")[0])) == "histogram"
        }

    for _ in range(3):
        after = engines.step()
        old, new = counted(before), counted(after)
        assert all(new[series] >= number for series, number in old.items())
        moved += sum(new[series] > number for series, number in old.items())
        before = after
    assert moved > 20
    full = {name: number for name, number in counted(before).items() if number > 1000 and not OUTLASTS.search(name)}
    engines.fleet.bank.drop(0)
    again = counted(engines.step())
    assert len(full) > 5
    assert all(again[series] < number for series, number in full.items() if series in again)


@pytest.mark.slow
def test_a_restarted_server_reports_its_start() -> None:
    engines = Engines("vllm")
    old = engines.page()
    engines.fleet.restart(0)
    while not engines.fleet.pods.pods[0].ready:
        engines.fleet.step(STEP)
    new = engines.page()
    for name in ("process_start_time_seconds", "vllm:generation_tokens_created"):
        assert total(new, name) > START.timestamp() > total(old, name)
    assert total(new, "process_cpu_seconds_total") < total(old, "process_cpu_seconds_total")
    assert total(new, "vllm:generation_tokens_total") < total(old, "vllm:generation_tokens_total")


@pytest.mark.slow
def test_the_buckets_of_every_histogram_rise_to_its_count(engines: dict[str, Engines]) -> None:
    for engine in engines.values():
        for family in text_string_to_metric_families(engine.page()):
            if family.type != "histogram":
                continue
            ladders: dict[tuple[tuple[str, str], ...], list[float]] = {}
            counts = {}
            for sample in family.samples:
                key = tuple(sorted(item for item in sample.labels.items() if item[0] != "le"))
                if sample.name.endswith("_bucket"):
                    ladders.setdefault(key, []).append(sample.value)
                elif sample.name.endswith("_count"):
                    counts[key] = sample.value
            for key, ladder in ladders.items():
                assert ladder == sorted(ladder), family.name
                assert ladder[-1] == counts[key], family.name


def test_every_kind_reports_the_same_engine(engines: dict[str, Engines]) -> None:
    pages = {kind: one.page() for kind, one in engines.items()}
    bank = engines["vllm"].fleet.bank
    finished = bank.counters.plain["finished_stop"][0] + bank.counters.plain["finished_length"][0]
    assert total(pages["vllm"], "vllm:request_success_total") == finished
    assert total(pages["sglang"], "sglang:num_requests_total") == finished
    assert total(pages["tgi"], "tgi_request_success") == finished
    assert total(pages["triton"], "nv_inference_request_success") == finished
    assert total(pages["mindie"], "request_success_total") == finished
    spent = bank.counters.sums["e2e"][0]
    assert total(pages["sglang"], "sglang:e2e_request_latency_seconds_sum") == pytest.approx(spent)
    assert total(pages["tgi"], "tgi_request_duration_sum") == pytest.approx(spent)
    assert total(pages["triton"], "nv_inference_request_duration_us") / 1e6 == pytest.approx(spent, rel=1e-3)
    used = bank.kv_used_ratio[0]
    assert total(pages["sglang"], "sglang:token_usage") == pytest.approx(used, abs=1e-4)
    assert total(pages["mindie"], "npu_cache_usage_perc") == pytest.approx(used, abs=1e-6)
    assert total(pages["tgi"], "tgi_batch_current_size") == bank.running[0]


def test_sglang_splits_streamed_and_other_requests(engines: dict[str, Engines]) -> None:
    page, bank = engines["sglang"].page(), engines["sglang"].fleet.bank
    streamed = total(page, "sglang:generation_tokens_total", is_streaming="true")
    whole = total(page, "sglang:generation_tokens_total", is_streaming="false")
    assert streamed > 5 * whole > 0
    assert streamed + whole == bank.counters.plain["generation_tokens"][0]
    assert total(page, "sglang:time_to_first_token_seconds_count") == bank.counters.buckets["ttft"][0].sum()
    capacity = total(page, "sglang:max_total_num_tokens")
    parts = ("kv_used_tokens", "kv_available_tokens", "kv_evictable_tokens")
    assert sum(total(page, f"sglang:{part}") for part in parts) == capacity == 6144 * 16
    assert 0 < total(page, "sglang:cache_hit_rate") < 1
    assert total(page, "sglang:gen_throughput") > 100


def test_sglang_reports_short_queues_where_vllm_starts_at_a_third_of_a_second(engines: dict[str, Engines]) -> None:
    page = engines["sglang"].page()
    waited = total(page, "sglang:queue_time_seconds_bucket", le="0.1")
    assert waited > 0.5 * total(page, "sglang:queue_time_seconds_count")
    bounds = described(engines["vllm"].page())["vllm:request_queue_time_seconds"]["bounds"]
    assert bounds[0] == 0.3


def test_triton_shows_its_own_devices_and_recent_quantiles(engines: dict[str, Engines]) -> None:
    one = engines["triton"]
    page, pod = one.page(), one.fleet.pods.pods[0]
    for gpu in pod.gpus:
        assert total(page, "nv_gpu_power_usage", gpu_uuid=one.fleet.gpu_uuid(gpu)) == pytest.approx(
            one.fleet.gpus.power[gpu], abs=1e-3
        )
    assert len([series for series in values(page) if series.startswith("nv_gpu_utilization{")]) == len(pod.gpus)
    assert all(0 <= total(page, "nv_gpu_utilization", gpu_uuid=one.fleet.gpu_uuid(gpu)) <= 1 for gpu in pod.gpus)
    quantiles = [
        total(page, "nv_inference_request_summary_us", quantile=str(at)) for at in (0.5, 0.9, 0.95, 0.99, 0.999)
    ]
    assert quantiles == sorted(quantiles)
    assert 1e5 < quantiles[0] < 1e8


@pytest.mark.slow
def test_aborted_requests_are_missing_on_vllm_and_reported_by_others() -> None:
    pages = {}
    for kind in KINDS:
        engines = Engines(kind)
        Bent(engines.fleet, ("services", "abort_ratio", 0, 0.5), ("services", "bad_request_ratio", 0, 0.2))
        before = engines.page()
        pages[kind] = (before, engines.step(4))
    old, new = pages["vllm"]
    assert total(new, "vllm:request_success_total", finished_reason="abort") == 0
    answered = total(new, "http_requests_total", status="2xx") - total(old, "http_requests_total", status="2xx")
    finished = total(new, "vllm:request_success_total") - total(old, "vllm:request_success_total")
    assert answered > 1.2 * finished > 0
    assert "4xx" not in old
    assert total(new, "http_requests_total", status="4xx") > 0
    assert "5xx" not in new
    for kind, name, labels in (
        ("sglang", "sglang:num_aborted_requests_total", {}),
        ("sglang", "sglang:http_responses_total", {"status_code": "400"}),
        ("tgi", "tgi_request_failure", {"err": "dropped"}),
        ("tgi", "tgi_request_failure", {"err": "validation"}),
        ("triton", "nv_inference_request_failure", {}),
        ("mindie", "request_failed_total", {}),
    ):
        old, new = pages[kind]
        assert total(new, name, **labels) > total(old, name, **labels), (kind, name)
        list(text_string_to_metric_families(new))


def test_a_late_child_is_created_when_it_appears() -> None:
    engines = Engines("vllm")
    engines.step()
    Bent(engines.fleet, ("slots", "error_ratio", 0, 0.5))
    page = engines.step()
    failed = total(page, "http_requests_total", status="5xx")
    assert failed == total(page, "vllm:request_success_total", finished_reason="error") > 0
    assert total(page, "http_requests_created", status="5xx") == pytest.approx(engines.fleet.at, abs=1)
    assert total(page, "http_requests_created", status="2xx") < engines.fleet.at - 3600


@pytest.mark.slow
def test_a_hung_core_freezes_its_values_while_requests_queue() -> None:
    for kind in KINDS:
        engines = Engines(kind)
        engines.step()
        Bent(engines.fleet, ("slots", "hung", 0, 1.0))
        engines.fleet.step(timedelta(seconds=2))
        first = values(engines.page())
        last = values(engines.step(2))
        moved = {series.split("{")[0] for series, number in last.items() if number != first[series] == first[series]}
        if kind == "vllm":
            assert not {name for name in moved if name.startswith("vllm:")}
            assert "process_open_fds" in moved
        elif kind == "sglang":
            assert {name for name in moved if name.startswith("sglang:")} <= {
                *("sglang:http_requests_total", "sglang:http_requests_active"),
                "sglang:scheduler_process_cpu_seconds_total",
            }
        elif kind == "mindie":
            assert moved <= {"request_received_total", "failed_request_perc"}
        else:
            waiting = {"tgi": "tgi_queue_size", "triton": "nv_inference_pending_request_count"}[kind]
            series = next(one for one in last if one.split("{")[0] == waiting)
            assert last[series] > first[series]


def test_a_sleeping_engine_reports_only_its_sleep_state() -> None:
    engines = Engines("vllm")
    engines.step()
    assert "sleep_mode" not in engines.page()
    asleep = Bent(engines.fleet, ("slots", "asleep", 0, 1.0))
    page = engines.step()
    assert total(page, "vllm:engine_sleep_state", sleep_state="awake") == 0
    assert total(page, "vllm:engine_sleep_state", sleep_state="weights_offloaded") == 1
    assert total(page, "vllm:num_requests_running") == total(page, "vllm:kv_cache_usage_perc") == 0
    assert total(page, "vllm:sleep_mode_operation_duration_seconds_count", operation="sleep") == 1
    assert total(page, "process_open_fds") > 33
    assert "sleep_mode" not in engines.page(1)
    engines.fleet.injections.remove(asleep)
    page = engines.step()
    assert total(page, "vllm:engine_sleep_state", sleep_state="awake") == 1
    assert total(page, "vllm:sleep_mode_operation_duration_seconds_count", operation="wake") == 1


@pytest.mark.parametrize(
    ("kind", "there", "gone"),
    [
        (
            "vllm",
            ["vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_hits_total", "vllm:time_per_output_token_seconds"],
            ["vllm:kv_cache_usage_perc", "vllm:prefix_cache_hits_total", "vllm:engine_sleep_state"],
        ),
        ("sglang", ["sglang:time_per_output_token_seconds"], ["sglang:inter_token_latency_seconds"]),
        ("triton", ["nv_cache_num_hits_per_model", "nv_model_load_duration_secs"], ["nv_cache_num_hits"]),
    ],
)
def test_another_release_has_other_metric_names(kind: str, there: list[str], gone: list[str]) -> None:
    engines = Engines(kind)
    now = described(engines.step())
    Bent(engines.fleet, ("slots", "names_changed", 0, 1.0))
    engines.fleet.step(STEP)
    changed = described(engines.page())
    assert set(there) <= set(changed) - set(now)
    assert set(gone) <= set(now) - set(changed)
    assert set(described(engines.page(1))) == set(now)
    list(text_string_to_metric_families(engines.page()))
    if kind == "sglang":
        assert changed["sglang:generation_tokens_total"]["labels"] == {"model_name"}
    if kind == "triton":
        assert changed["nv_inference_request_failure"]["labels"] == {"model", "version", "reason"}


def test_no_page_without_an_engine_core() -> None:
    engines = Engines("vllm")
    Bent(engines.fleet, ("slots", "core_dead", 0, 1.0))
    engines.fleet.step(STEP)
    assert [status(engines.fleet, slot) for slot in (0, 1)] == [503, 200]


def test_failed_kv_transfers_are_counted_by_their_connector() -> None:
    engines = Engines("vllm")
    assert "nixl" not in engines.page()
    Bent(engines.fleet, ("slots", "kv_transfer_failures_per_second", 0, 2.0))
    assert total(engines.step(2), "vllm:nixl_num_failed_transfers_total") > 10
