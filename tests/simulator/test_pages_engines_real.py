"""Pages of every kind of engine against what stands on real ones."""

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
# Known from the sources of a server, and not on the page that was recorded of it.
BESIDES = {
    "sglang": {
        *("sglang:per_stage_req_latency_seconds_created", "sglang:realtime_tokens_created"),
        *("sglang:http_requests_total", "sglang:http_requests_created", "sglang:http_requests_active"),
        *("sglang:http_responses_total", "sglang:http_responses_created"),
    },
    "tgi": {"tgi_batch_max_total_tokens"},
}
# A child appears with its first failure, and on a new server there is none.
NOT_YET = {"tgi": {"tgi_request_failure"}}


@pytest.fixture(scope="module")
def engines() -> dict[str, Engines]:
    result = {kind: Engines(kind) for kind in KINDS}
    for one in result.values():
        one.step()
    return result


def wanted(kind: str, longest: float) -> dict[str, dict[str, object]]:
    """The same of the real page, with ladders for a longest context."""
    result: dict[str, dict[str, object]] = {}
    lengths = tuple(float(digit * 10**power) for power in range(7) for digit in (1, 2, 5))
    for name, said in REAL["pages"][kind].items():
        family: dict[str, object] = {"type": said["type"]}
        if "labels" in said:
            family["labels"] = set(said["labels"])
        if "quantiles" in said:
            family["quantiles"] = dict.fromkeys(said["quantiles"])
        if "bounds" in said:
            family["bounds"] = {
                "hundred": None,
                "thousand": tuple(float(size) for size in range(1, 1025)),
                "lengths": tuple(bound for bound in lengths if bound <= longest),
            }.get(said["bounds"]) or tuple(float(bound) for bound in REAL["ladders"].get(said["bounds"], ()))
        result[name] = family
    return result


def compared(kind: str, ours: dict[str, dict[str, object]], real: dict[str, dict[str, object]]) -> None:
    assert set(real) - set(ours) <= NOT_YET.get(kind, set())
    assert set(ours) - set(real) <= BESIDES.get(kind, set())
    for name, said in real.items():
        if name not in ours:
            continue
        mine = dict(ours[name])
        if "labels" not in said:  # no child on the real page: any of ours has labels from its source
            assert mine["type"] == said["type"], name
            continue
        if said.get("bounds") == ():
            ladder = mine["bounds"]
            assert len(ladder) == 100
            assert ladder[-1] == pytest.approx(100 * ladder[0])
            mine["bounds"] = ()
        assert mine == said, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_families_types_labels_and_bounds_of_a_real_one(kind: str, engines: dict[str, Engines]) -> None:
    longest = engines[kind].fleet.spec.services[0].engine.max_model_length
    compared(kind, described(engines[kind].page()), wanted(kind, longest))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_of_a_real_page_is_what_stands_there(kind: str) -> None:
    if not ORIGINALS[kind].exists():
        pytest.skip("no real pages here")
    real = {
        name: said
        for name, said in described(ORIGINALS[kind].read_text(encoding="utf-8")).items()
        if not BY_FLAG.match(name)
    }
    kept = wanted(kind, 2048.0)
    assert set(real) == set(kept)
    for name, said in kept.items():
        result = dict(real[name])
        if said.get("bounds") == ():
            assert len(result.pop("bounds")) == 100
            said.pop("bounds")
        assert result == said, name
