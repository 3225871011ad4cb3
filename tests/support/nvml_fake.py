"""A fake NVIDIA driver for tests: a library built from fake_nvml.c that reads its state from a text file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
ROOT = Path(__file__).parents[2]
LIBRARY = "libnvidia-ml.so.1"


def build(folder: Path) -> Path:
    """Builds the library and returns its folder. Skips the test without a C compiler or the binding."""
    pytest.importorskip("pynvml", reason="missing: nvidia-ml-py")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("missing: gcc")
    subprocess.run(
        [compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}",
         "-o", str(folder / LIBRARY), str(SOURCE)],
        check=True,
    )  # fmt: skip
    return folder


class Driver:
    """State of the fake driver. The next call into the library uses every change."""

    def __init__(self, library: Path, state: Path) -> None:
        self.state = state
        self.values: dict[str, object] = {}
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML_STATE": str(state),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        self.set()

    def set(self, **values: object) -> None:
        """Sets values: ``set(gpus=2, **{"0.temperature": 80})``; None removes a line."""
        self.values |= values
        lines = "".join(f"{key} {value}\n" for key, value in self.values.items() if value is not None)
        whole = self.state.with_suffix(".new")
        whole.write_text(lines)
        whole.replace(self.state)

    def xid(self, gpu: int, code: int, instance: int | None = None) -> None:
        """Reports an XID event."""
        with Path(f"{self.state}.events").open("a") as file:
            file.write(f"{gpu} {code}{'' if instance is None else f' {instance}'}\n")


class Probe:
    """A process that reads with the real binding and prints the result as JSON."""

    def __init__(self, environment: dict[str, str], source: str = "nvml") -> None:
        command = [sys.executable, "-W", "error", str(Path(__file__).with_name("accelerator_probe.py")), source]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def send(self, order: str) -> dict:
        self._process.stdin.write(f"{order}\n")
        return json.loads(self._process.stdout.readline())

    def read(self) -> dict:
        return self.send("read")

    def page(self) -> str:
        return self.send("page")["page"]

    def wait(self) -> list | None:
        return self.send("wait")["xids"]

    def close(self) -> int:
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait(timeout=20)
