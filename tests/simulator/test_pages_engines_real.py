"""Pages of every engine kind against real pages."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from tests.simulator.engine_replicas import KINDS, Engines, described

REAL = yaml.safe_load((Path(__file__).parents[1] / "recordings/engine_pages.yaml").read_text(encoding="utf-8"))
DATA = Path(os.environ.get("OUTRIDER_DATA", Path(__file__).parents[3] / "shared"))
ORIGINALS = {kind: DATA / f"pages/{kind}.txt" for kind in KINDS} | {
    "vllm": DATA / "recordings/vllm-0.32.0/pages/metrics_warm.txt"
}
BY_FLAG = re.compile(r"vllm:(estimated_|kv_block_)")
# Known from the source code of a server, but missing on its recorded page.
BESIDES = {
    "sglang": {
        *("sglang:per_stage_req_latency_seconds_created", "sglang:realtime_tokens_created"),
        *("sglang:http_requests_total", "sglang:http_requests_created", "sglang:http_requests_active"),
        *("sglang:http_responses_total", "sglang:http_responses_created"),
    },
    "tgi": {"tgi_batch_max_total_tokens"},
}
# The series appears with the first failure; a new server has none.
NOT_YET = {"tgi": {"tgi_request_failure"}}


@pytest.fixture(scope="module")
def engines() -> dict[str, Engines]:
    result = {kind: Engines(kind) for kind in KINDS}
    for one in result.values():
        one.step()
    return result


def wanted(kind: str, longest: float) -> dict[str, dict[str, object]]:
    """Returns the families of the real page, with ladders for a maximum context."""
    result: dict[str, dict[str, object]] = {}
    lengths = tuple(float(digit * 10**power) for power in range(7) for digit in (1, 2, 5))
    for name, spec in REAL["pages"][kind].items():
        family: dict[str, object] = {"type": spec["type"]}
        if "labels" in spec:
            family["labels"] = set(spec["labels"])
        if "quantiles" in spec:
            family["quantiles"] = dict.fromkeys(spec["quantiles"])
        if "bounds" in spec:
            family["bounds"] = {
                "hundred": None,
                "thousand": tuple(float(size) for size in range(1, 1025)),
                "lengths": tuple(bound for bound in lengths if bound <= longest),
            }.get(spec["bounds"]) or tuple(float(bound) for bound in REAL["ladders"].get(spec["bounds"], ()))
        result[name] = family
    return result


def compared(kind: str, ours: dict[str, dict[str, object]], real: dict[str, dict[str, object]]) -> None:
    assert set(real) - set(ours) <= NOT_YET.get(kind, set())
    assert set(ours) - set(real) <= BESIDES.get(kind, set())
    for name, spec in real.items():
        if name not in ours:
            continue
        mine = dict(ours[name])
        if "labels" not in spec:  # no series on the real page: our labels come from its source code
            assert mine["type"] == spec["type"], name
            continue
        if spec.get("bounds") == ():
            ladder = mine["bounds"]
            assert len(ladder) == 100
            assert ladder[-1] == pytest.approx(100 * ladder[0])
            mine["bounds"] = ()
        assert mine == spec, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_families_types_labels_and_bounds_of_a_real_one(kind: str, engines: dict[str, Engines]) -> None:
    longest = engines[kind].fleet.spec.services[0].engine.max_model_length
    compared(kind, described(engines[kind].page()), wanted(kind, longest))


@pytest.mark.parametrize("kind", KINDS)
def test_stored_families_match_the_real_page(kind: str) -> None:
    if not ORIGINALS[kind].exists():
        pytest.skip("no real pages here")
    real = {
        name: spec
        for name, spec in described(ORIGINALS[kind].read_text(encoding="utf-8")).items()
        if not BY_FLAG.match(name)
    }
    kept = wanted(kind, 2048.0)
    assert set(real) == set(kept)
    for name, spec in kept.items():
        result = dict(real[name])
        if spec.get("bounds") == ():
            assert len(result.pop("bounds")) == 100
            spec.pop("bounds")
        assert result == spec, name
