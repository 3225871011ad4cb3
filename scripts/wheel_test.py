"""Builds the wheel, installs it in a clean environment, and runs tests/packaging there.

In the repository, tests can import files that the wheel lacks; here only the wheel can be imported. The wheel must have
exactly the tracked files of the packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Runs quietly; prints the output on failure."""
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        raise SystemExit(f"wheel: failed: {' '.join(map(str, command))}")
    return done.stdout


def uv() -> str:
    """Returns the uv of the Makefile, else the one on PATH."""
    own = ROOT / ".tools" / "uv"
    result = str(own) if own.exists() else shutil.which("uv")
    if result is None:
        raise SystemExit("wheel: uv not found; run `make wheel`, which downloads it")
    return result


def compare_files(wheel: Path) -> None:
    """Checks that the wheel has the tracked files of the packages, and no others."""
    known = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *PACKAGES).split("\n")
    wanted = {name for name in known if name and (ROOT / name).exists()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    for name in sorted(wanted ^ packed):
        print(f"wheel: {'missing' if name in wanted else 'not tracked by git:'} {name}", file=sys.stderr)
    if wanted != packed:
        raise SystemExit("wheel: its files differ from the tracked files")


def main() -> None:
    """Builds, compares, installs and tests the wheel."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(uv(), "build", "--wheel", "--quiet", "--out-dir", folder)
        (wheel,) = folder.glob("*.whl")
        compare_files(wheel)
        run(uv(), "export", "--frozen", "--quiet", "--no-default-groups", "--no-hashes", "--no-emit-project",
            "--output-file", folder / "locked.txt")  # fmt: skip
        run(uv(), "venv", "--quiet", "--python", sys.executable, folder / "env")
        python = folder / "env" / "bin" / "python"
        run(uv(), "pip", "install", "--quiet", "--python", python, "-r", folder / "locked.txt", wheel, "pytest")
        shutil.copytree(ROOT / "tests" / "packaging", folder / "packaging")
        run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "packaging", folder=folder)


if __name__ == "__main__":
    main()
