"""Cell statuses: no value without support on the exposition page."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import CollectReason
from outrider.model import CellStatus, EntityKind, EntityRef, SignalKey, TrustVerdict
from outrider.vocabulary import catalog

START = datetime(2026, 3, 1, 12, tzinfo=UTC)  # of the first scrape of a bench
ENGINE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0"}} {running}
vllm:kv_cache_usage_perc{{engine="0"}} {kv}
vllm:generation_tokens_total{{engine="0"}} {tokens}
vllm:prefix_cache_hits_total{{engine="0"}} {hits}
vllm:prefix_cache_queries_total{{engine="0"}} {queries}
vllm:request_success_total{{engine="0",finished_reason="stop"}} {finished}
vllm:request_success_total{{engine="0",finished_reason="error"}} {errors}
{more}process_start_time_seconds {started}
"""


def engine(*, running="1", kv="0.5", tokens=0, hits=0, queries=0, finished=0, errors=0, more="", started=1000.0) -> str:
    return ENGINE.format(**locals())


def test_a_first_scrape_has_gauges_and_no_increases(bench) -> None:
    one = bench("vllm")
    one.scrape(engine(tokens=500, finished=7))
    assert one.cell("engine_requests_running") == 1
    assert one.cell("engine_generation_tokens_total") is CellStatus.ABSENT
    assert one.cell("engine_generation_tokens_per_second") is CellStatus.ABSENT
    assert one.cell("engine_error_ratio") is CellStatus.ABSENT
    assert one.batch(EntityKind.REPLICA).interval_seconds is None
    waiting = {key.name for _, key in one.normaliser.needs_two("target-0")}
    assert {"engine_generation_tokens_total", "engine_error_ratio"} <= waiting
    assert "engine_requests_running" not in waiting


def test_increases_use_the_actual_interval(bench) -> None:
    one = bench("vllm")
    one.scrape(engine(tokens=500, finished=7, errors=1))
    one.scrape(engine(tokens=800, finished=10, errors=2), after=20)
    assert one.cell("engine_generation_tokens_total") == 300
    assert one.cell("engine_generation_tokens_per_second") == 15
    assert one.cell("engine_requests_finished_total") == 4
    assert one.cell("engine_error_ratio") == 0.25
    assert one.batch(EntityKind.REPLICA).interval_seconds == 20
    assert one.batch(EntityKind.REPLICA).trust is TrustVerdict.FRESH
    assert one.normaliser.needs_two("target-0") == []


def test_the_first_of_two_equal_series_counts(bench) -> None:
    target = bench("vllm")
    again = 'vllm:num_requests_running{engine="0"} 9\n'
    target.scrape(engine(running="1", more=again))
    target.scrape(engine(running="1", more=again))
    assert target.cell("engine_requests_running") == 1
    assert target.batch(EntityKind.REPLICA).trust is TrustVerdict.DUPLICATE
    target.scrape(engine(running="1"))
    assert target.batch(EntityKind.REPLICA).trust is TrustVerdict.FRESH


def test_a_page_with_a_frozen_heartbeat_is_stale(bench) -> None:
    target = bench("vllm")

    def page(cpu) -> str:
        return engine(tokens=5, more=f"process_cpu_seconds_total {cpu}\n")

    for cpu in (1.0, 1.1, 1.1):
        target.scrape(page(cpu), after=15)
        assert target.batch(EntityKind.REPLICA).trust is TrustVerdict.FRESH
        assert target.cell("engine_requests_running") == 1
    target.scrape(page(1.1), after=15)
    assert target.batch(EntityKind.REPLICA).trust is TrustVerdict.FROZEN
    assert target.cell("engine_requests_running") is CellStatus.STALE
    assert target.cell("engine_generation_tokens_total") is CellStatus.STALE
    target.scrape(page(1.2), after=15)
    assert target.batch(EntityKind.REPLICA).trust is TrustVerdict.FRESH
    assert target.cell("engine_requests_running") == 1


def test_a_ratio_without_events_is_undefined_and_not_absent(bench) -> None:
    target = bench("vllm")
    target.scrape(engine())
    target.scrape(engine())
    assert target.cell("engine_prefix_cache_hit_ratio") is CellStatus.UNDEFINED
    assert target.cell("engine_error_ratio") is CellStatus.UNDEFINED
    assert target.cell("engine_generation_tokens_total") == 0
    assert target.batch(EntityKind.REPLICA).trust is TrustVerdict.FRESH  # an idle engine stands still


def test_a_decreasing_counter_resets_only_its_cell(bench) -> None:
    target = bench("vllm")
    target.scrape(engine(tokens=500, queries=10, hits=5))
    target.scrape(engine(tokens=20, queries=20, hits=6))
    assert target.cell("engine_generation_tokens_total") is CellStatus.RESET
    assert target.cell("engine_generation_tokens_per_second") is CellStatus.RESET
    assert target.cell("engine_prefix_cache_hit_ratio") == pytest.approx(0.1)
    assert target.batch(EntityKind.REPLICA).trust is TrustVerdict.RESET
    target.scrape(engine(tokens=50, queries=20, hits=6))
    assert target.cell("engine_generation_tokens_total") == 30


def test_a_new_process_resets_counters_even_if_they_grew(bench) -> None:
    target = bench("vllm")
    target.scrape(engine(tokens=5, started=1000))
    target.scrape(engine(tokens=500, started=2000))
    assert target.cell("engine_generation_tokens_total") is CellStatus.RESET
    assert target.cell("engine_requests_running") == 1
    target.scrape(engine(tokens=600, started=2000))
    assert target.cell("engine_generation_tokens_total") == 100


def test_a_missing_metric_is_absent(bench) -> None:
    target = bench("vllm")
    target.scrape(engine())
    assert target.cell("engine_spec_decode_accept_ratio") is CellStatus.ABSENT
    assert target.cell("engine_requests_waiting") is CellStatus.ABSENT


def test_nan_on_the_page(bench) -> None:
    target = bench("vllm")
    target.scrape(engine(running="NaN", kv="NaN"))
    assert target.cell("engine_requests_running") is CellStatus.UNTRUSTED
    assert target.cell("engine_kv_cache_usage_ratio") is CellStatus.UNDEFINED
    target.scrape(engine(tokens="NaN"))
    assert target.cell("engine_generation_tokens_total") is CellStatus.UNTRUSTED
    target.scrape(engine(tokens=7))
    assert target.cell("engine_generation_tokens_total") is CellStatus.UNTRUSTED  # the increase since NaN


def test_a_labeled_child_of_an_engine_starts_from_zero(bench) -> None:
    target = bench("vllm")
    ok = 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 4\n'
    target.scrape(engine(more=ok))
    target.scrape(engine(more=ok + 'http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 3\n'))
    assert target.cell("engine_http_requests_total") == 3
    assert target.cell("engine_http_failed_total") == 3
    probes = 'http_requests_total{handler="/metrics",method="GET",status="5xx"} 9\n'
    target.scrape(engine(more=ok + probes))
    assert target.cell("engine_http_requests_total") == 0  # /metrics is no generation endpoint
    assert target.cell("engine_http_failed_total") == 0


def test_a_returning_device_has_no_increase(bench) -> None:
    page = 'DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="GPU-a"}} 40\n{more}'
    errors = 'DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-b"} 40\nDCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="1",UUID="GPU-b"} 12\n'
    target = bench("dcgm", entity={"kind": "node", "name": "node-0"})
    target.scrape(page.format(more=""))
    target.scrape(page.format(more=errors))
    assert target.cell("hw_accel_ecc_uncorrectable_total", EntityKind.GPU, "GPU-b") is CellStatus.ABSENT
    target.scrape(page.format(more=errors))
    assert target.cell("hw_accel_ecc_uncorrectable_total", EntityKind.GPU, "GPU-b") == 0


def test_a_lost_accelerator_is_absent_for_a_while(bench) -> None:
    both = "".join(f'DCGM_FI_DEV_GPU_TEMP{{gpu="{n}",UUID="GPU-{n}",Hostname="h"}} 40\n' for n in range(2))
    target = bench("dcgm", entity={"kind": "node", "name": "node-0"})
    target.scrape(both)
    assert target.cell("hw_accel_present", EntityKind.NODE) == 2
    target.scrape(both.splitlines(keepends=True)[0])
    assert target.cell("hw_accel_present", EntityKind.NODE) == 1
    assert target.cell("hw_accel_seen", EntityKind.GPU, "GPU-0") == 1
    assert target.cell("hw_accel_seen", EntityKind.GPU, "GPU-1") == 0
    assert target.cell("hw_accel_temperature_celsius", EntityKind.GPU, "GPU-1") is CellStatus.ABSENT
    assert target.batch(EntityKind.GPU).trust is TrustVerdict.PARTIAL
    target.scrape("")
    assert target.cell("hw_accel_present", EntityKind.NODE) == 0
    assert target.cell("hw_accel_seen", EntityKind.GPU, "GPU-0") == 0
    target.scrape(both.splitlines(keepends=True)[0], after=24 * 3600)
    assert target.cell("hw_accel_seen", EntityKind.GPU, "GPU-0") == 1
    assert target.cell("hw_accel_seen", EntityKind.GPU, "GPU-1") == 0, "a lost device is not forgotten"
    assert target.batch(EntityKind.GPU).trust is TrustVerdict.PARTIAL


def test_a_lost_accelerator_keeps_its_row_until_it_returns_or_is_replaced(bench) -> None:
    row = 'DCGM_FI_DEV_GPU_TEMP{{gpu="{n}",UUID="GPU-{n}",Hostname="h",pod="p",namespace="s"}} 40\n'
    target = bench("dcgm", entity={"kind": "node", "name": "node-0"})
    target.scrape(row.format(n=0) + row.format(n=1))
    lost, pod = EntityRef("test", EntityKind.GPU, None, "GPU-1"), EntityRef("test", EntityKind.POD, "s", "p")
    assert (lost, pod) in target.collected.edges
    target.scrape(row.format(n=0))
    assert (lost, pod) in target.collected.edges
    assert target.collected.labels[lost]["lost"] == "true"
    target.scrape(row.format(n=0) + row.format(n=1))
    assert "lost" not in target.collected.labels[lost]
    target.scrape(row.format(n=0))
    target.scrape(row.format(n=0) + row.format(n=2))
    assert (lost, pod) not in target.collected.edges
    assert lost not in target.batch(EntityKind.GPU).entities


def test_other_entities_that_disappear_are_dropped_after_a_while(bench) -> None:
    both = "".join(f'kube_pod_info{{namespace="s",pod="p-{n}",uid="{n}",node="n"}} 1\n' for n in range(2))
    both += "".join(
        f'kube_pod_status_ready{{namespace="s",pod="p-{n}",uid="{n}",condition="true"}} 1\n' for n in range(2)
    )
    target = bench("kube_state_metrics", entity={"kind": "cluster", "name": "test"})
    target.scrape(both)
    left = "".join(line for line in both.splitlines(keepends=True) if "p-0" in line)
    target.scrape(left)
    names = {entity.name for entity in target.batch(EntityKind.POD).entities}
    assert names == {"p-0", "p-1"}
    assert target.batch(EntityKind.POD).trust is TrustVerdict.PARTIAL, "the page may be cut"
    target.scrape(left, after=150)
    assert target.batch(EntityKind.POD).trust is TrustVerdict.FRESH, "pods leave on purpose"
    target.scrape(left, after=16 * 60)
    assert {entity.name for entity in target.batch(EntityKind.POD).entities} == {"p-0"}


def test_an_empty_page_of_an_exporter_never_seen_counts_nothing(bench) -> None:
    target = bench("dcgm", entity={"kind": "node", "name": "node-0"})
    target.scrape("")
    assert target.cell("target_up", EntityKind.NODE) == 1
    assert target.cell("hw_accel_present", EntityKind.NODE) is CellStatus.ABSENT


def test_a_failed_scrape_makes_every_known_entity_absent(bench) -> None:
    one = bench("vllm", labels={"node": "node-0"})
    one.scrape(engine(), probed=True, health=200, load=3.0)
    assert one.cell("engine_health_ok") == 1
    assert one.cell("engine_inflight_requests") == 3
    one.fail(CollectReason.REFUSED, probed=True)
    assert one.cell("target_up") == 0
    assert one.cell("engine_up") == 0
    assert one.cell("engine_health_ok") == 0
    assert one.cell("target_failure_code") == 1
    assert one.cell("engine_inflight_requests") is CellStatus.ABSENT
    assert one.cell("engine_requests_running") is CellStatus.ABSENT
    assert one.batch(EntityKind.REPLICA).trust is TrustVerdict.FAILED
    watch = one.watch()
    assert watch.entities == (EntityRef("test", EntityKind.WORKLOAD, "targets", "target-0"),)
    assert watch.values[0, watch.keys.index(SignalKey("target_up"))] == 0


def test_a_target_that_never_responded_has_its_own_row(bench) -> None:
    target = bench("dcgm", entity={"kind": "node", "name": "node-0"})
    target.fail(CollectReason.TIMEOUT)
    assert target.cell("target_up", EntityKind.NODE) == 0
    assert target.cell("target_failure_code", EntityKind.NODE) == 2
    assert {batch.kind for batch in target.collected.batches} == {EntityKind.NODE, EntityKind.WORKLOAD}


def test_increases_after_a_gap_cover_the_whole_gap(bench) -> None:
    target = bench("vllm")
    target.scrape(engine(tokens=100))
    target.fail()
    target.scrape(engine(tokens=400))
    assert target.cell("engine_generation_tokens_total") == 300
    assert target.cell("engine_generation_tokens_per_second") == 10
    assert target.batch(EntityKind.REPLICA).interval_seconds == 30


def test_a_backward_clock_step_invalidates_only_increases(bench) -> None:
    target = bench("vllm")
    target.scrape(engine(tokens=100))
    target.scrape(engine(tokens=200, running="4"), after=-30)
    assert target.cell("engine_requests_running") == 4
    assert target.cell("engine_generation_tokens_total") is CellStatus.UNTRUSTED
    assert target.cell("engine_error_ratio") is CellStatus.UNTRUSTED
    assert target.batch(EntityKind.REPLICA).trust is TrustVerdict.CLOCK_STEP
    target.scrape(engine(tokens=250))
    assert target.cell("engine_generation_tokens_total") == 50


def test_health_and_load_are_absent_if_not_requested(bench) -> None:
    target = bench("vllm")
    target.scrape(engine())
    assert target.cell("engine_health_ok") is CellStatus.ABSENT
    assert target.cell("engine_inflight_requests") is CellStatus.ABSENT
    target.scrape(engine(), probed=True, health=503)
    assert target.cell("engine_health_ok") == 0
    target.scrape(engine(), probed=True, health=200)
    assert target.cell("engine_inflight_requests") is CellStatus.ABSENT  # no /load
    for no_endpoint in (404, 405, 401):
        target.scrape(engine(), probed=True, health=no_endpoint)
        assert target.cell("engine_health_ok") is CellStatus.ABSENT
        assert target.cell("engine_up") == 1


CONTAINER = 'container_cpu_usage_seconds_total{{container="c",pod="p",namespace="n"}} {cpu} {stamp}\n'
MEMORY = 'container_memory_working_set_bytes{{container="c",pod="p",namespace="n"}} {memory} {stamp}\n'


def stamped(cpu, seconds) -> str:
    """A cAdvisor page with timestamps ``seconds`` after the first scrape."""
    stamp = round((START.timestamp() + seconds) * 1000)
    return CONTAINER.format(cpu=cpu, stamp=stamp) + MEMORY.format(memory=5, stamp=stamp)


def test_frozen_timestamps_are_stale(bench) -> None:
    target = bench("cadvisor", entity={"kind": "node", "name": "node-0"})
    target.scrape(stamped(10, 0))
    target.scrape(stamped(10, 0))
    assert target.cell("container_memory_working_set_bytes", EntityKind.CONTAINER) is CellStatus.STALE
    assert target.cell("container_cpu_usage_cores", EntityKind.CONTAINER) is CellStatus.STALE
    assert target.batch(EntityKind.CONTAINER).trust is TrustVerdict.STALE
    target.scrape(stamped(16, 12))
    assert target.cell("container_cpu_usage_cores", EntityKind.CONTAINER) == 0.5  # 6 s of CPU in its own 12 s
    assert target.cell("container_memory_working_set_bytes", EntityKind.CONTAINER) == 5


@pytest.mark.parametrize("off", [-3600, 3600])
def test_samples_of_another_time_are_stale(bench, off: int) -> None:
    target = bench("cadvisor", entity={"kind": "node", "name": "node-0"})
    target.scrape(stamped(10, off))
    assert target.cell("container_memory_working_set_bytes", EntityKind.CONTAINER) is CellStatus.STALE
    assert target.batch(EntityKind.CONTAINER).trust is TrustVerdict.STALE
    assert target.watch().values[0, -1] == TrustVerdict.STALE.code
    target.scrape(stamped(16, off + 15))
    assert target.cell("container_cpu_usage_cores", EntityKind.CONTAINER) is CellStatus.STALE
    assert target.batch(EntityKind.CONTAINER).trust is TrustVerdict.STALE
    target.scrape(stamped(22, 30))
    target.scrape(stamped(28, 45))
    assert target.cell("container_memory_working_set_bytes", EntityKind.CONTAINER) == 5


def test_samples_of_a_file_may_have_any_time(bench) -> None:
    target = bench("cadvisor", entity={"kind": "node", "name": "node-0"})
    target.scrape(stamped(10, -86400), saved=True)
    assert target.cell("container_memory_working_set_bytes", EntityKind.CONTAINER) == 5
    assert target.batch(EntityKind.CONTAINER).trust is TrustVerdict.FRESH


def histogram(counts, total, name="vllm:time_to_first_token_seconds", bounds=("0.1", "0.25", "+Inf")) -> str:
    lines = [f'{name}_bucket{{engine="0",le="{le}"}} {n}\n' for le, n in zip(bounds, counts, strict=True)]
    return "".join([*lines, f'{name}_sum{{engine="0"}} {total}\n', f'{name}_count{{engine="0"}} {counts[-1]}\n'])


def test_bucket_increases_use_the_fixed_bounds(bench) -> None:
    target = bench("vllm")
    target.scrape(engine(more=histogram((1, 2, 3), 5.0)))
    assert target.cell("engine_ttft_seconds#7") is CellStatus.ABSENT
    target.scrape(engine(more=histogram((4, 9, 11), 9.0)))
    bounds = catalog.signal("engine_ttft_seconds").bounds
    batch = target.batch(EntityKind.REPLICA)
    values = [target.cell(f"engine_ttft_seconds#{n}") for n in range(len(bounds) + 1)]
    assert values[bounds.index(0.1)] == 3
    assert values[bounds.index(0.25)] == 4
    assert values[bounds.index(0.5)] == 1  # all that is known of it: above 0.25
    assert sum(values) == 8
    assert target.cell("engine_ttft_seconds#-1") == 4.0
    assert batch.keys[: len(batch.keys)] == target.normaliser.adapter("vllm").keys[EntityKind.REPLICA]


def test_a_recreated_counter_is_a_reset_at_any_value(bench) -> None:
    target = bench("vllm")

    def page(tokens, born) -> str:
        return engine(tokens=tokens, finished=4, more=f'vllm:generation_tokens_created{{engine="0"}} {born}\n')

    target.scrape(page(5, 100.0))
    target.scrape(page(9, 100.0))
    assert target.cell("engine_generation_tokens_total") == 4
    target.scrape(page(50, 130.0))
    assert target.cell("engine_generation_tokens_total") is CellStatus.RESET
    assert target.cell("engine_requests_finished_total") == 0  # which has no birth of its own
    target.scrape(page(60, 130.0))
    assert target.cell("engine_generation_tokens_total") == 10


def test_decreasing_buckets_are_not_a_histogram(bench) -> None:
    target = bench("vllm")
    target.scrape(engine(more=histogram((0, 0, 0), 0.0)))
    target.scrape(engine(more=histogram((10, 4, 15), 9.5)))
    columns = [key for key in target.batch(EntityKind.REPLICA).keys if key.name == "engine_ttft_seconds"]
    assert {target.cell(str(key)) for key in columns if key.bucket is not None} == {CellStatus.UNTRUSTED}


def test_a_histogram_without_inf_uses_its_count(bench) -> None:
    one = bench("vllm")
    pages = [histogram(counts, 0.0) for counts in ((0, 0, 0), (4, 9, 30))]
    for page in pages:
        one.scrape(engine(more="".join(line for line in page.splitlines(True) if "+Inf" not in line)))
    values = [
        one.cell(f"engine_ttft_seconds#{n}") for n in range(len(catalog.signal("engine_ttft_seconds").bounds) + 1)
    ]
    assert sum(values) == 30
    other = bench("vllm", name="target-1")
    for page in pages:
        other.scrape(
            engine(more="".join(line for line in page.splitlines(True) if "+Inf" not in line and "_count" not in line))
        )
    assert other.cell("engine_ttft_seconds#0") is CellStatus.ABSENT


def test_a_partial_histogram_is_rejected(bench) -> None:
    target = bench("vllm")
    target.scrape(engine(more=histogram((4, 9, 11), 9.0)))
    target.scrape(engine(more=histogram((5, 9, 9), 9.5)))
    columns = [key for key in target.batch(EntityKind.REPLICA).keys if key.name == "engine_ttft_seconds"]
    assert {target.cell(str(key)) for key in columns} == {CellStatus.RESET}


def test_custom_buckets_are_interpolated_like_promql(bench) -> None:
    target = bench("vllm")
    bounds = ("0.07", "0.3", "5000", "+Inf")
    target.scrape(engine(more=histogram((0, 0, 0, 0), 0, bounds=bounds)))
    target.scrape(engine(more=histogram((70, 300, 5000, 5010), 0, bounds=bounds)))
    ladder = catalog.signal("engine_ttft_seconds").bounds
    values = [target.cell(f"engine_ttft_seconds#{bucket}") for bucket in range(len(ladder) + 1)]
    assert values[ladder.index(0.06)] == 0  # of the first bucket only its bound is known
    assert values[ladder.index(0.08)] == pytest.approx(70 + 10)
    assert values[ladder.index(0.5)] == pytest.approx(50 + 4700 * 0.2 / 4999.7)
    assert sum(values) == pytest.approx(5010)


def test_values_above_the_last_bound_are_one_bucket_above_it(bench) -> None:
    target = bench("vllm")
    bounds = ("5", "10", "+Inf")
    target.scrape(engine(more=histogram((0, 0, 0), 0, bounds=bounds)))
    target.scrape(engine(more=histogram((0, 4, 10), 0, bounds=bounds)))
    ladder = catalog.signal("engine_ttft_seconds").bounds
    assert target.cell(f"engine_ttft_seconds#{ladder.index(20)}") == 6
    assert target.cell(f"engine_ttft_seconds#{len(ladder)}") == 0


@pytest.mark.parametrize(
    ("line", "signal", "wanted"),
    [
        ("vllm:num_requests_running -5", "engine_requests_running", CellStatus.UNTRUSTED),
        ("vllm:num_requests_running 0", "engine_requests_running", 0),
        ("vllm:kv_cache_usage_perc 250", "engine_kv_cache_usage_ratio", CellStatus.UNTRUSTED),
        ("vllm:kv_cache_usage_perc 1.5", "engine_kv_cache_usage_ratio", CellStatus.UNTRUSTED),
        ("vllm:kv_cache_usage_perc -0.2", "engine_kv_cache_usage_ratio", CellStatus.UNTRUSTED),
        ("vllm:kv_cache_usage_perc 1.01", "engine_kv_cache_usage_ratio", pytest.approx(1.01)),
    ],
)
def test_impossible_values_are_untrusted(bench, line, signal, wanted) -> None:
    target = bench("vllm")
    target.scrape(line + "\n")
    assert target.cell(signal) == wanted


def test_every_signal_with_bounds_has_zero_within_them() -> None:
    for signal in catalog.signals().values():
        low, high = signal.plausible
        assert low <= 0 <= high, signal.name


def test_cumulative_quantiles_are_for_one_off_reads_only(bench) -> None:
    target = bench("vllm")
    target.scrape(engine(tokens=50, more=histogram((1, 2, 3), 5.0)))
    values = {
        since.quantile: (since.value, since.above)
        for since in target.normaliser.since_start(target.target, target.page)
    }
    assert values[0.5] == (pytest.approx(0.175), False)
    assert values[0.99] == (0.25, True)
    target.scrape(engine(tokens=60))
    assert target.cell("engine_generation_tokens_total") == 10  # the look left no trace


def test_every_rank_of_an_engine_is_a_separate_replica(bench) -> None:
    one = bench("vllm", labels={"service": "chat", "pod": "pod-0"})
    page = "".join(f'vllm:num_requests_running{{engine="{n}"}} {n + 1}\n' for n in range(2))
    one.scrape(page + "process_start_time_seconds 5\n", probed=True, health=200, load=9)
    assert one.cell("engine_requests_running", name="target-0:0") == 1
    assert one.cell("engine_requests_running", name="target-0:1") == 2
    assert one.cell("engine_start_time_seconds", name="target-0") == 5
    assert one.cell("engine_inflight_requests", name="target-0") == 9
    assert one.cell("engine_up", name="target-0:1") == 1
    whole, part = one.target.entity, EntityRef("test", EntityKind.REPLICA, "default", "target-0:1")
    assert (whole, part) in one.collected.edges
    assert (part, EntityRef("test", EntityKind.SERVICE, "default", "chat")) in one.collected.edges
    assert one.collected.labels[part]["part_of"] == "target-0"
    one.fail()
    assert one.cell("engine_up", name="target-0:1") == 0


def test_series_may_appear_disappear_and_change_order(bench) -> None:
    target = bench("vllm")
    target.scrape(engine(tokens=10, finished=4))
    lines = engine(tokens=15, finished=9).splitlines(keepends=True)
    target.scrape("".join(reversed(lines)))
    assert target.cell("engine_generation_tokens_total") == 5
    assert target.cell("engine_requests_finished_total") == 5


def test_edges_and_labels_of_device_pages(bench) -> None:
    page = 'DCGM_FI_DEV_GPU_TEMP{gpu="3",UUID="GPU-a",modelName="H100",Hostname="x",pod="p",namespace="ml"} 40\n'
    target = bench("dcgm", entity={"kind": "node", "name": "node-0"})
    target.scrape(page)
    node = EntityRef("test", EntityKind.NODE, None, "node-0")
    gpu = EntityRef("test", EntityKind.GPU, None, "GPU-a")
    assert set(target.collected.edges) == {(node, gpu), (gpu, EntityRef("test", EntityKind.POD, "ml", "p"))}
    assert target.collected.labels[gpu]["index"] == "3"
    assert target.collected.labels[gpu]["gpu_type"] == "H100"


def test_old_and_new_label_spellings_of_devices(bench) -> None:
    target = bench("dcgm", entity={"kind": "node", "name": "node-0"})
    target.scrape('DCGM_FI_DEV_GPU_TEMP{gpu="0",uuid="GPU-a",hostname="x",pod_name="p",pod_namespace="ml"} 40\n')
    assert target.cell("hw_accel_temperature_celsius", EntityKind.GPU, "GPU-a") == 40
    assert target.cell("hw_accel_present", EntityKind.NODE) == 1
    assert EntityRef("test", EntityKind.POD, "ml", "p") in {upper for _, upper in target.collected.edges}


def test_the_monitoring_entity_is_labeled(bench) -> None:
    one = bench("dcgm", entity={"kind": "node", "name": "node-0"})
    one.scrape("")
    assert one.collected.labels[one.target.watcher] == {
        "target": "target-0",
        "adapter": "dcgm",
        "stands_for": "test/node//node-0",
        "node": "node-0",
    }


OPERATORS = """
adapter: odd
target: node
aggregate: sum
entities:
  node: {target: true}
signals:
  node_cpu_utilization_ratio: {gauge: cpu, aggregate: mean}
  node_memory_available_ratio: {ratio: {of: {gauge: free}, to: {gauge: size}}, per: [disk], aggregate: mean}
  node_filesystem_available_ratio: {ratio: {of: {gauge: free}, to: {gauge: size}}, per: [disk], aggregate: max}
  node_disk_busy_ratio: {gauge: cpu, aggregate: min, scale: 2, offset: 1}
  node_pressure: {at_least: {of: {gauge: [new, old]}, to: {gauge: limit}}}
  node_clock_offset_seconds: {gauge: drift, absolute: true}
  node_network_bytes_per_second: {gauge: {all: [in, out], maybe: [other]}}
  node_network_errors_per_second: {gauge: cpu, minus: limit}
"""


def test_operators_of_adapter_expressions(bench, monkeypatch) -> None:
    monkeypatch.setattr(catalog.Signal, "plausible", (-float("inf"), float("inf")))
    target = bench("odd", text=OPERATORS, entity={"kind": "node", "name": "n"})
    page = (
        'cpu{c="0"} 0.2\ncpu{c="1"} 0.6\nfree{disk="a"} 5\nsize{disk="a"} 10\nfree{disk="b"} 1\nsize{disk="b"} 10\n'
        'free{disk="c"} 0\nsize{disk="c"} 0\nold 7\nlimit 7\ndrift -0.5\nin 1\nout 2\n'
    )
    target.scrape(page)
    node = EntityKind.NODE
    assert target.cell("node_cpu_utilization_ratio", node) == pytest.approx(0.4)
    assert target.cell("node_memory_available_ratio", node) == pytest.approx(0.3)  # of the disks that have a size
    assert target.cell("node_filesystem_available_ratio", node) == 0.5
    assert target.cell("node_disk_busy_ratio", node) == pytest.approx(1.4)
    assert target.cell("node_pressure", node) == 1
    assert target.cell("node_clock_offset_seconds", node) == 0.5
    assert target.cell("node_network_bytes_per_second", node) == 3
    assert target.cell("node_network_errors_per_second", node) == pytest.approx(0.8 - 7)
    target.scrape("in 1\nlimit 7\n")
    assert target.cell("node_network_bytes_per_second", node) is CellStatus.ABSENT  # half of a sum is no sum
    assert target.cell("node_pressure", node) is CellStatus.ABSENT


def test_one_compilation_serves_many_targets(bench) -> None:
    one, other = bench("vllm"), bench("vllm", name="target-1")
    other.parser, other.normaliser = one.parser, one.normaliser
    one.scrape(engine(tokens=5))
    other.scrape(engine(tokens=900))
    past = one.normaliser._past
    assert past["target-0"].compiled is past["target-1"].compiled
    other.scrape(engine(tokens=901))
    one.scrape(engine(tokens=8))
    assert one.cell("engine_generation_tokens_total") == 3
    assert other.cell("engine_generation_tokens_total") == 1
    assert other.batch(EntityKind.REPLICA).entities[0].name == "target-1"


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 50), st.floats(1, 60)), min_size=2, max_size=12))
def test_failed_scrapes_lose_no_increases(bench, steps) -> None:
    one, tokens, seen, first, last = bench("vllm"), 7, 0.0, None, 0
    for works, grown, after in steps:
        tokens += grown
        if not works:
            one.fail(after=after)
            continue
        one.scrape(engine(tokens=tokens), after=after)
        if first is None:
            first = tokens
        else:
            seen += one.cell("engine_generation_tokens_total")
        last = tokens
    if first is not None:
        assert seen == last - first
