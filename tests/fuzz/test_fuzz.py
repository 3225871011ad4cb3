"""A short run of each fuzzer with its own seed; run long ones manually (see the other files)."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = 10_000


@pytest.mark.slow
def test_the_parser_withstands_a_fuzzer(tmp_path) -> None:
    if importlib.util.find_spec("atheris") is None:
        ours = sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 14)
        pytest.skip("missing: atheris is not installed" if ours else "atheris has no wheel for this platform")
    fuzzer = Path(__file__).with_name("exposition.py")
    run = subprocess.run(
        [sys.executable, str(fuzzer), f"-runs={RUNS}", "-seed=1", "-max_len=1000"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert f"#{RUNS}\tDONE" in run.stderr
