"""Scripts of the packaged Jobs, run in this process's environment with programs that stand for the drivers."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from outrider.model import ActionKind
from remediation.actuators.hook.diagnostic import Check, Report, judge, read
from remediation.actuators.hook.job_manifest import PackagedCheck, packaged
from tests.support.json_server import JsonServer, Response

DIAGNOSTIC = ActionKind.RUN_DIAGNOSTIC


def run(folder: Path, kind: ActionKind, check: PackagedCheck = "dcgm", **variables: str) -> tuple[int, str, str]:
    """Runs a Job's script; returns exit code, output and termination message."""
    container = packaged(kind, check)["spec"]["template"]["spec"]["containers"][0]
    message = folder / "termination-log"
    message.write_text("")
    script = str(container["args"][0]).replace("/tmp/", f"{folder}/").replace("/dev/termination-log", str(message))
    given = {"PATH": f"{folder}:{os.environ['PATH']}", "OUTRIDER_NODE": "node-1", "OUTRIDER_GPUS": "", **variables}
    done = subprocess.run(
        [*container["command"], script], env=given, capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stdout + done.stderr, message.read_text()


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


def test_a_passed_dcgm_diagnostic_reports_its_level(tmp_path: Path) -> None:
    program(tmp_path, "nv-hostengine", "exit 0")
    program(tmp_path, "dcgmi", 'echo "$@" > "$(dirname "$0")/called"')
    code, _, message = run(tmp_path, DIAGNOSTIC, OUTRIDER_LEVEL="2")
    assert (code, (tmp_path / "called").read_text().strip()) == (0, "diag --run 2")
    report = read(message)
    assert isinstance(report, Report)
    assert (report.passed, report.checks[0].name) == (True, "dcgmi diag --run 2")


@pytest.mark.parametrize(
    ("engine", "diag", "expected"), [("exit 3", "exit 0", 1), ("exit 0", "echo bad; exit 226", 226)]
)
def test_a_failed_dcgm_diagnostic_leaves_its_output(tmp_path: Path, engine: str, diag: str, expected: int) -> None:
    program(tmp_path, "nv-hostengine", engine)
    program(tmp_path, "dcgmi", diag)
    code, output, message = run(tmp_path, DIAGNOSTIC, OUTRIDER_LEVEL="1")
    assert (code, message) == (expected, "")
    assert ("bad" in output) is (expected == 226)


def test_the_driver_check_counts_devices(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", 'if [ "$1" = -L ]; then echo a; echo b; else echo details; fi')
    code, _, message = run(tmp_path, DIAGNOSTIC, "driver")
    report = read(message)
    assert code == 0
    assert report is not None
    assert (report.checks[0].value, report.checks[0].unit) == (2.0, "GPUs")
    program(tmp_path, "nvidia-smi", "echo 'Unable to determine the device handle'; exit 15")
    code, output, message = run(tmp_path, DIAGNOSTIC, "driver")
    assert (code, message) == (1, "")
    assert "Unable to determine" in output


# Output of nvbandwidth as its README and output.cpp print it, on a node with two devices.
BANDWIDTH = """nvbandwidth Version: v0.7
Built from Git version: v0.7

Device 0: NVIDIA H100 80GB HBM3 (00000000:1b:00)
Device 1: NVIDIA H100 80GB HBM3 (00000000:43:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.34     12.36

SUM host_to_device_memcpy_ce 67.70

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    390.10
 1    387.42       N/A

SUM device_to_device_memcpy_read_ce 777.52

NOTE: The reported results may not reflect the full capabilities of the platform.
"""


def test_a_bandwidth_check_reports_the_slowest_link_of_each_direction(tmp_path: Path) -> None:
    (tmp_path / "printed").write_text(BANDWIDTH)
    program(tmp_path, "nvbandwidth", 'cat "$(dirname "$0")/printed"')
    code, output, message = run(tmp_path, DIAGNOSTIC, "bandwidth")
    report = read(message)
    assert (code, output) == (0, "")
    assert report is not None
    assert [(check.name, check.value, check.unit) for check in report.checks] == [
        ("host_to_device_memcpy_ce, slowest link", 12.36, "GB/s"),
        ("device_to_device_memcpy_read_ce, slowest link", 387.42, "GB/s"),
    ]
    peers = [Report(True, (Check(report.checks[0].name, True, rate, "GB/s"),)) for rate in (55.0, 56.0)]
    passed, detail = judge(report, peers)
    assert not passed
    assert "host_to_device_memcpy_ce, slowest link 12.36 GB/s is below 80% of 55.5 GB/s" in detail


@pytest.mark.parametrize("script", ["echo 'CUDA_ERROR_NO_DEVICE'; exit 1", "echo 'Waived: none'"])
def test_a_bandwidth_check_without_a_rate_fails(tmp_path: Path, script: str) -> None:
    program(tmp_path, "nvbandwidth", script)
    code, output, message = run(tmp_path, DIAGNOSTIC, "bandwidth")
    assert (code, message) == (1, "")
    assert output.strip()


@pytest.mark.parametrize(("gpus", "expected"), [("GPU-1,GPU-2", "--gpu-reset -i GPU-1,GPU-2"), ("", "--gpu-reset")])
def test_a_reset_names_its_devices(tmp_path: Path, gpus: str, expected: str) -> None:
    program(tmp_path, "nvidia-smi", 'echo "$@"')
    code, output, _ = run(tmp_path, ActionKind.RESET_GPU, OUTRIDER_GPUS=gpus)
    assert (code, output.strip()) == (0, expected)


def test_a_reboot_goes_through_the_host(tmp_path: Path) -> None:
    program(tmp_path, "nsenter", 'echo "$@"')
    code, output, _ = run(tmp_path, ActionKind.REBOOT_NODE)
    assert code == 0
    assert output.strip().startswith("--target 1 ")
    assert output.strip().endswith("-- systemd-run --on-active=10s systemctl reboot")


def completion(tokens: int) -> dict[str, Any]:
    return {"choices": [{"text": " one two"}], "usage": {"completion_tokens": tokens}}


def test_a_generation_probe_measures_every_engine(tmp_path: Path, server: JsonServer) -> None:
    server.responses |= {
        "GET /v1/models": Response(body={"data": [{"id": "chat"}]}),
        "POST /v1/completions": Response(body=completion(32)),
    }
    dead = "http://127.0.0.1:1"
    variables = {"OUTRIDER_ENDPOINTS": f"{server.url} {dead}", "OUTRIDER_REPORT": str(tmp_path / "termination-log")}
    code, _, message = run(tmp_path, DIAGNOSTIC, "generation", **variables)
    report = read(message)
    assert code == 0
    assert report is not None
    assert not report.passed
    good, bad = report.checks
    assert (good.passed, good.unit, bad.passed) == (True, "tokens/s", False)
    assert good.value is not None
    assert good.value > 32
    assert bad.name == f"generation {dead}: URLError"
    assert server.requests[-1].json["model"] == "chat"


def test_a_generation_probe_without_an_engine_fails(tmp_path: Path) -> None:
    code, output, message = run(tmp_path, DIAGNOSTIC, "generation", OUTRIDER_ENDPOINTS="")
    assert (code, message, output.strip()) == (1, "", "no engine on node-1 is known")
