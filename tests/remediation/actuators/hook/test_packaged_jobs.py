"""Scripts of the packaged Jobs, run in this process's environment with programs that stand for the drivers."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from outrider.model import ActionKind
from remediation.actuators.hook.diagnostic import Report, read
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
