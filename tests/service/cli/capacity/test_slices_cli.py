"""``outrider capacity cost`` and ``fit`` on slices of GPUs, with JSON output."""

from __future__ import annotations

import json

import pytest

from tests.service.cli.test_cli import answer, run

COST = ("capacity", "cost", "--model", "Llama-3.1-8B", "--bits", "4", "--prompt", "600", "--tokens", "250")
LITTLE = (*COST, "--qps", "1", "--tpot", "60ms", "--ttft", "2s")


def types(found):
    return {one["gpu_type"] for point in found["front"] for one in point["replicas"]}


def test_slices_are_offered_by_default_and_shares_on_request(tmp_path):
    found = answer(*LITTLE, "--gpu", "H100", cwd=tmp_path)
    assert found["front"][0]["slices"] == {"H100 1g.10gb on_demand": 1}
    assert found["front"][0]["gpus"] == {"H100 1g.10gb on_demand": 1}
    assert types(answer(*LITTLE, "--gpu", "H100", "--no-slices", cwd=tmp_path)) == {"H100"}
    assert any("MPS 1/" in one for one in types(answer(*LITTLE, "--gpu", "L40S", "--mps", cwd=tmp_path)))
    assert types(answer(*LITTLE, "--gpu", "L40S", cwd=tmp_path)) == {"L40S"}
    output = run(*LITTLE, "--gpu", "L40S", "--mps", "--lang", "zh", "-o", "table", cwd=tmp_path).stdout
    assert "MPS 份额" in output


def test_one_slice_is_selected_by_name(tmp_path):
    found = answer(*LITTLE, "--gpu", "h100 2g.20gb", cwd=tmp_path)
    assert types(found) == {"H100 2g.20gb"}
    (tmp_path / "outrider.yaml").write_text("gpus:\n  - {type: H100, price_per_gpu_hour: 6, quota: 1}\n")
    found = answer(*LITTLE, "--gpu", "H100 2g.20gb", cwd=tmp_path)
    assert found["front"][0]["cost_per_hour"] == pytest.approx(2.0)
    busy = answer(*COST, "--qps", "1000", "--gpu", "H100 2g.20gb", cwd=tmp_path, code=1)
    assert busy["reason"] == "quota"


def test_a_configured_slice_has_its_own_price_and_a_zero_quota_excludes_it(tmp_path):
    (tmp_path / "outrider.yaml").write_text("gpus:\n  - {type: H100 1g.10gb, price_per_gpu_hour: 0.4, quota: 7}\n")
    found = answer(*LITTLE, cwd=tmp_path)
    assert (types(found), found["front"][0]["cost_per_hour"]) == ({"H100 1g.10gb"}, pytest.approx(0.4))
    (tmp_path / "outrider.yaml").write_text("gpus:\n  - {type: H100, quota: 0}\n")
    none = answer(*LITTLE, cwd=tmp_path, code=1)
    assert [one["offer"] for one in none["refused"]] == ["H100 on_demand"]
    assert none["reason"] == "nothing_serves"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--qps", "1", "--gpu", "H100 9g.99gb"), "H100 has no MIG profile '9g.99gb'"),
        (("--qps", "1", "--gpu", "T4 1g.4gb"), "T4 has no MIG profile"),
        (("--qps", "1 token"), "--qps"),
        (("--qps", "-1"), "--qps"),
    ],
)
def test_meaningless_options_are_rejected(tmp_path, options, expected):
    error = answer(*COST, *options, cwd=tmp_path, code=2)["error"]
    assert expected in error["message"]
    assert error["hint"]


def test_an_unknown_profile_is_rejected_with_its_line(tmp_path):
    (tmp_path / "outrider.yaml").write_text("gpus:\n  - {type: H100}\n  - {type: H100 1g.5gb, quota: -1}\n")
    errors = json.loads(run("config", "check", "outrider.yaml", cwd=tmp_path).stdout)["errors"]
    assert [(error["line"], error["key"]) for error in errors] == [(3, "gpus[1].type"), (3, "gpus[1].quota")]
    assert "1g.10gb" in errors[0]["message"]


def test_a_slice_makes_no_group(tmp_path):
    command = ("capacity", "fit", "--model", "Llama-3.1-8B", "--bits", "4", "--gpu", "H100 1g.10gb")
    assert answer(*command, "--context", "4096", cwd=tmp_path)["mps_replicas_per_gpu"] == 1
    refused = answer(*command, "--tp", "2", cwd=tmp_path, code=1)
    assert (refused["fits"], refused["reason"]) == (False, "part")
    apart = ("capacity", "disaggregated", "--model", "Llama-3.1-70B", "--gpu", "H100 3g.40gb", "--qps", "1")
    error = answer(*apart, "--prompt", "500", "--tokens", "100", cwd=tmp_path, code=2)["error"]
    assert "does not fit H100 3g.40gb" in error["message"]
