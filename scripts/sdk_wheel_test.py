"""Builds the wheel of outrider-sdk, installs it in clean environments, and uses it there.

The environments contain only the wheel and prometheus-client. The oldest supported Python is tested as well if it is
installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

from wheel_test import run, uv

ROOT = Path(__file__).resolve().parent.parent
SDK = ROOT / "sdk"
PROJECT = tomllib.loads((SDK / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ALLOWED = {"outrider-sdk", "prometheus-client"}
USE = """
import asyncio, sys
from importlib import metadata, resources
import outrider_sdk
from outrider_sdk import ModelService, check

service = ModelService("wheel", model="m")

@service.watch(tenant="acme")
async def words():
    for word in ("one ", "two "):
        yield word

async def main():
    assert [word async for word in words()] == ["one ", "two "]

asyncio.run(main())
with service.request() as request:
    assert request.output(" ") == "empty"
page = service.page().decode()
assert 'outrider_sdk_tokens_total{kind="output",model="m",tenant="acme"} 2.0' in page, page
assert 'outrider_sdk_invalid_answers_total{model="m",reason="empty",tenant="none"} 1.0' in page, page
assert check("Fine.") is None
assert resources.files("outrider_sdk").joinpath("py.typed").is_file()
assert metadata.version("outrider-sdk") == outrider_sdk.__version__
"""


def compare_files(wheel: Path) -> None:
    """Checks that the wheel has the tracked files of the package and no others."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "sdk/outrider_sdk").split("\n")
    wanted = {name.removeprefix("sdk/") for name in listed if name and (ROOT / name).exists()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    if wanted != packed:
        raise SystemExit(f"sdk wheel: differs from the tracked files in {sorted(wanted ^ packed)}")


def interpreters() -> list[str]:
    """Returns this interpreter, and the oldest supported one if it is installed."""
    oldest = PROJECT["requires-python"].removeprefix(">=")
    command = [uv(), "python", "find", "--no-python-downloads", "--system", oldest]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(f"sdk wheel: Python {oldest} is not installed; tested only on {sys.version.split()[0]}")
        return [sys.executable]
    return [sys.executable, result.stdout.strip()]


def main() -> None:
    """Builds, compares, installs and uses the wheel."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(uv(), "build", "--wheel", "--quiet", "--out-dir", folder, SDK)
        (wheel,) = folder.glob("*.whl")
        compare_files(wheel)
        for number, interpreter in enumerate(interpreters()):
            environment = folder / f"env{number}"
            run(uv(), "venv", "--quiet", "--python", interpreter, environment)
            python = environment / "bin" / "python"
            run(uv(), "pip", "install", "--quiet", "--python", python, wheel)
            listed = json.loads(run(uv(), "pip", "list", "--python", python, "--format", "json"))
            names = {one["name"] for one in listed}
            if names != ALLOWED:
                raise SystemExit(f"sdk wheel: unexpected dependencies: {sorted(names - ALLOWED)}")
            run(python, "-c", USE, folder=folder)


if __name__ == "__main__":
    main()
