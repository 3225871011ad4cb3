from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from outrider.vocabulary.catalog import signal
from simulator.exporters.targets import Pages, pages, targets
from simulator.exporters.text import Template, go_number, python_number
from simulator.fleet import Fleet

START = datetime(2026, 11, 18, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    result = Fleet(seed=2, start=START)
    result.step(timedelta(seconds=15))
    return result


@pytest.fixture(scope="module")
def parsed(fleet: Fleet) -> dict[str, dict[str, Metric]]:
    result = {}
    for name, body in pages(fleet).items():
        assert body is not None
        assert body.endswith(b"\n")
        result[name] = {family.name: family for family in text_string_to_metric_families(body.decode())}
    return result


@pytest.mark.slow
def test_there_are_45_pages_and_all_parse(fleet: Fleet, parsed: dict[str, dict[str, Metric]]) -> None:
    assert len(parsed) == 45
    assert set(parsed) == {target.name for target in targets(fleet)}
    short = {name for name, families in parsed.items() if len(families) <= 15}
    assert short == {f"{kind}-{service}" for kind in ("probe", "sdk") for service in ("chat-70b", "code-14b")}


def parts(line: str) -> tuple[str, float]:
    """Returns series and number of a line; a timestamp may follow."""
    result = re.fullmatch(r"(\S+?(?:\{.*\})?) (\S+)(?: \d+)?", line)
    assert result is not None, line
    return result[1], float(result[2])


@pytest.mark.slow
def test_no_series_is_repeated_on_a_page(fleet: Fleet) -> None:
    for name, body in pages(fleet).items():
        assert body is not None
        series = [parts(line)[0] for line in body.decode().splitlines() if not line.startswith("#")]
        assert len(series) == len(set(series)), name


def test_vllm_histograms_have_the_engine_s_ladders(parsed: dict[str, dict[str, Metric]]) -> None:
    replica = parsed["chat-70b-0"]
    for metric, canonical in (
        ("vllm:time_to_first_token_seconds", "engine_ttft_seconds"),
        ("vllm:inter_token_latency_seconds", "engine_itl_seconds"),
        ("vllm:e2e_request_latency_seconds", "engine_e2e_seconds"),
    ):
        buckets = [s for s in replica[metric].samples if s.name.endswith("_bucket")]
        bounds = [float(sample.labels["le"]) for sample in buckets]
        assert bounds == [*signal(canonical).bounds, float("inf")]
        values = [sample.value for sample in buckets]
        assert values == sorted(values)
        count = next(s.value for s in replica[metric].samples if s.name.endswith("_count"))
        assert values[-1] == count > 0


def test_vllm_page_reports_its_configuration(parsed: dict[str, dict[str, Metric]]) -> None:
    labels = parsed["code-14b-0"]["vllm:cache_config_info"].samples[0].labels
    assert labels["gpu_memory_utilization"] == "0.92"
    assert (labels["num_gpu_blocks"], labels["block_size"]) == ("6144", "16")
    requests = parsed["code-14b-0"]["http_requests"].samples[0]
    assert requests.labels == {"handler": "/v1/chat/completions", "method": "POST", "status": "2xx"}


def test_vllm_page_has_the_families_of_a_real_one(parsed: dict[str, dict[str, Metric]]) -> None:
    data = Path(os.environ.get("OUTRIDER_DATA", Path(__file__).parents[4] / "shared"))
    real = data / "recordings/vllm-0.32.0/pages/metrics_warm.txt"
    if not real.exists():
        pytest.skip("no recordings here")
    by_flag = re.compile(r"vllm:(estimated_|kv_block_)")
    text = real.read_text(encoding="utf-8")
    wanted = {
        (family.name, family.type, family.documentation)
        for family in text_string_to_metric_families(text)
        if not by_flag.match(family.name)
    }
    ours = {(family.name, family.type, family.documentation) for family in parsed["chat-70b-0"].values()}
    assert ours == wanted
    keys = {
        family.name: {tuple(sorted(sample.labels)) for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }
    for name, family in parsed["chat-70b-0"].items():
        assert {tuple(sorted(sample.labels)) for sample in family.samples} == keys[name], name


def test_dcgm_rows_name_their_pod(fleet: Fleet, parsed: dict[str, dict[str, Metric]]) -> None:
    rows = parsed["dcgm-node-0"]["DCGM_FI_DEV_GPU_TEMP"].samples
    assert [row.labels["pod"] for row in rows] == ["chat-70b-0"] * 4 + ["chat-70b-1"] * 4
    assert {row.labels["Hostname"] for row in rows} == {"node-0"}
    assert [row.labels["UUID"] for row in rows] == [fleet.gpu_uuid(gpu) for gpu in range(8)]
    spare = parsed["dcgm-node-7"]["DCGM_FI_DEV_GPU_TEMP"].samples
    assert all("pod" not in row.labels for row in spare)
    xid = parsed["dcgm-node-0"]["DCGM_FI_DEV_XID_ERRORS"].samples
    assert {(row.labels["err_code"], row.value) for row in xid} == {("0", 0.0)}


def test_memory_adds_up_and_stays_within_the_reservation(parsed: dict[str, dict[str, Metric]]) -> None:
    families = parsed["dcgm-node-0"]
    used, free, reserved = (
        [row.value for row in families[f"DCGM_FI_DEV_FB_{what}"].samples] for what in ("USED", "FREE", "RESERVED")
    )
    assert {a + b + c for a, b, c in zip(used, free, reserved, strict=True)} == {81559.0}
    assert all(0.9 < value / 81559 < 0.93 for value in used)


def test_node_pages_account_for_every_cpu_second(parsed: dict[str, dict[str, Metric]]) -> None:
    per_cpu: dict[str, float] = {}
    for sample in parsed["node-0"]["node_cpu_seconds"].samples:
        per_cpu[sample.labels["cpu"]] = per_cpu.get(sample.labels["cpu"], 0.0) + sample.value
    boot = parsed["node-0"]["node_boot_time_seconds"].samples[0].value
    now = parsed["node-0"]["node_time_seconds"].samples[0].value
    assert len(per_cpu) == 32
    assert all(abs(total - (now - boot)) < 5 for total in per_cpu.values())


def test_kube_state_reports_nodes_pods_and_deployments(parsed: dict[str, dict[str, Metric]]) -> None:
    cluster = parsed["kube-state"]
    ready = [
        sample.value
        for sample in cluster["kube_node_status_condition"].samples
        if sample.labels["condition"] == "Ready" and sample.labels["status"] == "true"
    ]
    assert ready == [1.0] * 8
    assert len(cluster["kube_pod_info"].samples) == 16
    phases = {s.labels["phase"] for s in cluster["kube_pod_status_phase"].samples if s.value == 1}
    assert phases == {"Running"}
    available = {s.labels["deployment"]: s.value for s in cluster["kube_deployment_status_replicas_available"].samples}
    assert available == {"chat-70b": 10.0, "code-14b": 6.0}


@pytest.mark.slow
def test_counters_grow_from_page_to_page() -> None:
    fleet = Fleet(seed=2, start=START)
    reader = Pages(fleet)
    before: dict[tuple[str, str], float] = {}
    for _ in range(4):
        fleet.step(timedelta(seconds=15))
        for name, body in reader.all().items():
            assert body is not None
            counters: set[str] = set()
            gauges: set[str] = set()
            for line in body.decode().splitlines():
                if line.startswith("# TYPE"):
                    _, _, family, kind = line.split(" ")
                    (counters if kind in ("counter", "histogram") else gauges).add(family)
                    continue
                if line.startswith("#"):
                    continue
                series, number = parts(line)
                family = re.sub(r"_(bucket|count|sum)$", "", series.split("{")[0])
                if family in counters:
                    assert number >= before.get((name, series), 0.0), series
                    before[name, series] = number


@given(st.floats(0, 1e15))
def test_numbers_read_back_as_they_were(value: float) -> None:
    assert float(go_number(value)) == value
    assert float(python_number(value)) == value


def test_numbers_have_the_format_of_the_exporters() -> None:
    assert [python_number(x) for x in (0.0, 15.0, 0.25, 1.79518920178e9, 1e6)] == [
        "0.0",
        "15.0",
        "0.25",
        "1.79518920178e+09",
        "1e+06",
    ]
    assert [go_number(x) for x in (0.0, 15.0, 0.25, 2.5276514304e10, 245094.0)] == [
        "0",
        "15",
        "0.25",
        "2.5276514304e+10",
        "245094",
    ]


def test_label_values_are_escaped() -> None:
    page = Template()
    page.family("x", "gauge", "help")
    page.sample("x", {"a": 'say "hi"\\\n'}, 0)
    (family,) = text_string_to_metric_families(page.render([1.0]).decode())
    assert family.samples[0].labels == {"a": 'say "hi"\\\n'}
